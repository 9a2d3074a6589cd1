#pragma once

// The GPU of a rank in a test: one of this machine's, or an emulated one.

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace trainyard::engine::testing {

// How many ranks can have a GPU each. Opens none in this process, which is going to fork.
int GpusHere();

absl::StatusOr<std::unique_ptr<kernels::Device>> OpenGpuOf(int rank);

}  // namespace trainyard::engine::testing
