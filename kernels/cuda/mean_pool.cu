#include "kernels/ops/mean_pool.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// A thread per element of y, channels fastest.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MeanPoolKernel(const T* x, T* y, int64_t pixels, int64_t channels, int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  x += at / channels * pixels * channels + at % channels;
  float sum = 0;
  for (int64_t p = 0; p < pixels; ++p) sum += ToFloat(x[p * channels]);
  y[at] = FromFloat<T>(sum / static_cast<float>(pixels));
}

// A thread per element of dx.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MeanPoolBackwardKernel(const T* dy, T* dx, int64_t pixels, int64_t channels, int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t image = at / channels / pixels;
  dx[at] = FromFloat<T>(ToFloat(dy[image * channels + at % channels]) / static_cast<float>(pixels));
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const MeanPoolForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      const int64_t n = op.batch * op.channels;
      Launch(stream, ThreadForEach(n), MeanPoolKernel<T>, op.x.As<T>(), op.y.As<T>(), op.pixels,
             op.channels, n);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const MeanPoolBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      const int64_t n = op.batch * op.pixels * op.channels;
      Launch(stream, ThreadForEach(n), MeanPoolBackwardKernel<T>, op.dy.As<T>(), op.dx.As<T>(),
             op.pixels, op.channels, n);
    }};
  });
}

}  // namespace trainyard::kernels::cuda
