#include "kernels/cuda/add_bias.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddBiasKernel(const T* x, const float* bias, T* y, int64_t n, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = FromFloat<T>(ToFloat(x[i]) + bias[i % cols]);
}

}  // namespace

void LaunchAddBias(Stream& stream, const Buffer& x, const float* bias, const Buffer& y,
                   int64_t rows, int64_t cols) {
  const int64_t n = rows * cols;
  ForElement(y.dtype, [&]<typename T>() {
    Launch(stream, ThreadForEach(n), AddBiasKernel<T>, x.As<T>(), bias, y.As<T>(), n, cols);
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const AddBias& op) {
  return Kernel{.launch = [op](Stream& stream) {
    LaunchAddBias(stream, op.x, op.bias.As<float>(), op.y, op.rows, op.cols);
  }};
}

}  // namespace trainyard::kernels::cuda
