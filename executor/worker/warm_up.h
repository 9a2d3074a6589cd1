#pragma once

#include "absl/status/status.h"
#include "kernels/device.h"

namespace trainyard::worker {

// Runs small kernels, and on a GPU a step of a small model, so that libraries and kernels are
// loaded and the cost of their first use is paid. Ops that this device lacks are left out; a
// failure means that the device cannot be used.
absl::Status WarmUp(kernels::Device& device);

}  // namespace trainyard::worker
