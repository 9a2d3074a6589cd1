#include "kernels/cuda/add_bias.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    AddBiasKernel(const float* x, const float* bias, float* y, int64_t n, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = x[i] + bias[i % cols];
}

}  // namespace

void LaunchAddBias(Stream& stream, const float* x, const float* bias, float* y, int64_t rows,
                   int64_t cols) {
  const int64_t n = rows * cols;
  Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, AddBiasKernel, x, bias, y, n, cols);
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const AddBias& op) {
  absl::Status status = RequireTypes("add bias", {{"x", op.x}, {"bias", op.bias}, {"y", op.y}});
  status.Update(RequirePositive("add bias", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    LaunchAddBias(stream, op.x.As<float>(), op.bias.As<float>(), op.y.As<float>(), op.rows,
                  op.cols);
  }};
}

}  // namespace trainyard::kernels::cuda
