#include "kernels/ops/pool.h"

#include <cmath>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

struct PoolShape {
  int64_t height, width, out_height, out_width, channels, window;
};

// A thread per element of y, channels fastest.
__global__ void __launch_bounds__(kThreads)
    MaxPoolKernel(const float* x, float* y, uint8_t* index, PoolShape s, int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t c = at % s.channels;
  const int64_t ow = at / s.channels % s.out_width;
  const int64_t oh = at / s.channels / s.out_width % s.out_height;
  const int64_t b = at / s.channels / s.out_width / s.out_height;
  const float* corner =
      x + ((b * s.height + oh * s.window) * s.width + ow * s.window) * s.channels + c;
  float best = corner[0];
  int place = 0;
  for (int i = 0; i < s.window; ++i) {
    for (int j = 0; j < s.window; ++j) {
      const float value = corner[(i * s.width + j) * s.channels];
      if (value > best || isnan(value)) {  // NaN is taken and stays, as in PyTorch
        best = value;
        place = static_cast<int>(i * s.window + j);
      }
    }
  }
  y[at] = best;
  index[at] = static_cast<uint8_t>(place);
}

// A thread per element of dx: windows do not overlap, so each gathers from one place at most.
__global__ void __launch_bounds__(kThreads)
    MaxPoolBackwardKernel(const float* dy, const uint8_t* index, float* dx, PoolShape s,
                          int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t c = at % s.channels;
  const int64_t w = at / s.channels % s.width;
  const int64_t h = at / s.channels / s.width % s.height;
  const int64_t b = at / s.channels / s.width / s.height;
  const int64_t oh = h / s.window, ow = w / s.window;
  float gradient = 0;
  if (oh < s.out_height && ow < s.out_width) {
    const int64_t from = ((b * s.out_height + oh) * s.out_width + ow) * s.channels + c;
    const int64_t place = (h % s.window) * s.window + w % s.window;
    if (index[from] == place) gradient = dy[from];
  }
  dx[at] = gradient;
}

template <typename Op>
absl::Status CheckPool(const Op& op) {
  absl::Status status = RequirePositive("max pool", {{"batch", op.batch},
                                                     {"height", op.height},
                                                     {"width", op.width},
                                                     {"channels", op.channels},
                                                     {"window", op.window}});
  if (status.ok() && op.window > 15) {
    status = absl::InvalidArgumentError("max pool: window is larger than 15");
  }
  if (status.ok() && (op.window > op.height || op.window > op.width)) {
    status = absl::InvalidArgumentError("max pool: window is larger than the image");
  }
  return status;
}

template <typename Op>
PoolShape ShapeOf(const Op& op) {
  return {.height = op.height,
          .width = op.width,
          .out_height = op.height / op.window,
          .out_width = op.width / op.window,
          .channels = op.channels,
          .window = op.window};
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const MaxPoolForward& op) {
  absl::Status status = RequireTypes(
      "max pool",
      {{"x", op.x}, {"y", op.y}, {.name = "index", .buffer = op.index, .dtype = DType::kU8}});
  status.Update(CheckPool(op));
  if (!status.ok()) return status;
  return Kernel{.launch = [op, shape = ShapeOf(op)](Stream& stream) {
    const int64_t n = op.batch * shape.out_height * shape.out_width * op.channels;
    Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, MaxPoolKernel, op.x.As<float>(),
           op.y.As<float>(), op.index.As<uint8_t>(), shape, n);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const MaxPoolBackward& op) {
  absl::Status status = RequireTypes(
      "max pool backward",
      {{"dy", op.dy}, {"dx", op.dx}, {.name = "index", .buffer = op.index, .dtype = DType::kU8}});
  status.Update(CheckPool(op));
  if (!status.ok()) return status;
  return Kernel{.launch = [op, shape = ShapeOf(op)](Stream& stream) {
    const int64_t n = op.batch * op.height * op.width * op.channels;
    Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, MaxPoolBackwardKernel, op.dy.As<float>(),
           op.index.As<uint8_t>(), op.dx.As<float>(), shape, n);
  }};
}

}  // namespace trainyard::kernels::cuda
