#include "tests/gpu/emulator/nccl_memory.h"
#include "tests/gpu/gang/rank_device.h"

namespace trainyard::engine::testing {

// Every process has one.
int GpusHere() { return emulator::kMostRanks; }

absl::StatusOr<std::unique_ptr<kernels::Device>> OpenGpuOf(int /*rank*/) {
  return kernels::OpenCuda(0);
}

}  // namespace trainyard::engine::testing
