#include "kernels/ops/copy_if_taken.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    CopyIfTakenKernel(const float* x, float* y, const float* grad_scale, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n && IsTaken(grad_scale)) y[i] = x[i];
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const CopyIfTaken& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, ThreadForEach(op.n), CopyIfTakenKernel, op.x.As<float>(), op.y.As<float>(),
           op.grad_scale.As<float>(), op.n);
  }};
}

}  // namespace trainyard::kernels::cuda
