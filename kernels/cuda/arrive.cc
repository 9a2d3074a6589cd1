#include "kernels/ops/arrive.h"

#include "kernels/cuda/cuda_device.h"

namespace trainyard::kernels::cuda {

absl::StatusOr<Kernel> CudaDevice::Bind(const Arrive&) {
  return Kernel{.launch = [](Stream&) {}};
}

}  // namespace trainyard::kernels::cuda
