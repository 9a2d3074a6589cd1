#pragma once

#include "absl/status/status.h"
#include "kernels/device.h"

namespace trainyard::kernels {

// Launches a kernel that has run before: on a GPU recorded as a CUDA graph and replayed, in the
// emulator once more as it is.
absl::Status Relaunch(Kernel& kernel, Stream& stream);

}  // namespace trainyard::kernels
