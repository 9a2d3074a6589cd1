#include "kernels/ops/zero.h"
#include "kernels/cuda/cuda_device.h"

namespace trainyard::kernels::cuda {

absl::StatusOr<Kernel> CudaDevice::Bind(const Zero& op) {
  const size_t bytes = static_cast<size_t>(op.n) * SizeOf(op.x.dtype);
  return Kernel{.launch = [data = op.x.data, bytes](Stream& stream) {
    const CudaStream& on = CudaStream::From(stream);
    on.fault().Note(cudaMemsetAsync(data, 0, bytes, on.handle()), "zero");
  }};
}

}  // namespace trainyard::kernels::cuda
