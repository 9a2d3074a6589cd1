#include "kernels/ops/pool.h"

#include <cmath>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/elements.h"

namespace trainyard::kernels::cuda {
namespace {

// PoolShape with what follows from it.
struct Pooling {
  int64_t height, width, out_height, out_width, channels, window, stride, pad;
};

// A thread per element of y, channels fastest.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MaxPoolKernel(const T* x, T* y, uint8_t* index, Pooling s, int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t c = at % s.channels;
  const int64_t first_w = at / s.channels % s.out_width * s.stride - s.pad;
  const int64_t first_h = at / s.channels / s.out_width % s.out_height * s.stride - s.pad;
  const T* image =
      x + at / s.channels / s.out_width / s.out_height * s.height * s.width * s.channels;
  float best = -INFINITY;
  int place = -1;
  for (int i = 0; i < s.window; ++i) {
    for (int j = 0; j < s.window; ++j) {
      const int64_t h = first_h + i, w = first_w + j;
      if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
      const float value = ToFloat(image[(h * s.width + w) * s.channels + c]);
      // NaN is taken and stays, as in PyTorch.
      if (place < 0 || value > best || isnan(value)) {
        best = value;
        place = static_cast<int>(i * s.window + j);
      }
    }
  }
  y[at] = FromFloat<T>(best);
  index[at] = static_cast<uint8_t>(place);
}

// A thread per element of dx gathers from the windows that cover it, in order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MaxPoolBackwardKernel(const T* dy, const uint8_t* index, T* dx, Pooling s, int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t c = at % s.channels;
  const int64_t w = at / s.channels % s.width + s.pad;
  const int64_t h = at / s.channels / s.width % s.height + s.pad;
  const int64_t b = at / s.channels / s.width / s.height;
  const int64_t first_oh = h < s.window ? 0 : (h - s.window) / s.stride + 1;
  const int64_t first_ow = w < s.window ? 0 : (w - s.window) / s.stride + 1;
  float gradient = 0;
  for (int64_t oh = first_oh; oh <= h / s.stride && oh < s.out_height; ++oh) {
    for (int64_t ow = first_ow; ow <= w / s.stride && ow < s.out_width; ++ow) {
      const int64_t from = ((b * s.out_height + oh) * s.out_width + ow) * s.channels + c;
      const int64_t place = (h - oh * s.stride) * s.window + w - ow * s.stride;
      if (index[from] == place) gradient += ToFloat(dy[from]);
    }
  }
  dx[at] = FromFloat<T>(gradient);
}

Pooling PoolingOf(const PoolShape& s) {
  return {.height = s.height,
          .width = s.width,
          .out_height = s.out_height(),
          .out_width = s.out_width(),
          .channels = s.channels,
          .window = s.window,
          .stride = s.stride,
          .pad = s.pad};
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const MaxPoolForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op, s = PoolingOf(op.shape)](Stream& stream) {
      const int64_t n = op.shape.batch * s.out_height * s.out_width * s.channels;
      Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, MaxPoolKernel<T>, op.x.As<T>(),
             op.y.As<T>(), op.index.As<uint8_t>(), s, n);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const MaxPoolBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Kernel{.launch = [op, s = PoolingOf(op.shape)](Stream& stream) {
      const int64_t n = op.shape.batch * s.height * s.width * s.channels;
      Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, MaxPoolBackwardKernel<T>,
             op.dy.As<T>(), op.index.As<uint8_t>(), op.dx.As<T>(), s, n);
    }};
  });
}

}  // namespace trainyard::kernels::cuda
