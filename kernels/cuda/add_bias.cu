#include "kernels/cuda/add_bias.h"

#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    AddBiasKernel(const float* bias, float* y, int64_t n, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] += bias[i % cols];
}

}  // namespace

void LaunchAddBias(Stream& stream, const float* bias, float* y, int64_t rows, int64_t cols) {
  const int64_t n = rows * cols;
  Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, AddBiasKernel, bias, y, n, cols);
}

}  // namespace trainyard::kernels::cuda
