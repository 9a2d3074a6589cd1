#include "kernels/ops/fold.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    AddDoublesKernel(const double* part, double* total, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) total[i] += part[i];
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const Fold& op) {
  if (op.total.dtype == DType::kF32) {
    return Bind(Add{.a = op.total, .b = op.part, .y = op.total, .n = op.n});
  }
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, ThreadForEach(op.n), AddDoublesKernel, op.part.As<double>(),
           op.total.As<double>(), op.n);
  }};
}

}  // namespace trainyard::kernels::cuda
