#include "kernels/ops/mean_pool.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

// A thread per element of y, channels fastest.
__global__ void __launch_bounds__(kThreads)
    MeanPoolKernel(const float* x, float* y, int64_t pixels, int64_t channels, int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  x += at / channels * pixels * channels + at % channels;
  float sum = 0;
  for (int64_t p = 0; p < pixels; ++p) sum += x[p * channels];
  y[at] = sum / static_cast<float>(pixels);
}

// A thread per element of dx.
__global__ void __launch_bounds__(kThreads)
    MeanPoolBackwardKernel(const float* dy, float* dx, int64_t pixels, int64_t channels,
                           int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t image = at / channels / pixels;
  dx[at] = dy[image * channels + at % channels] / static_cast<float>(pixels);
}

template <typename Op>
absl::Status CheckShape(const Op& op) {
  return RequirePositive("mean pool",
                         {{"batch", op.batch}, {"pixels", op.pixels}, {"channels", op.channels}});
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const MeanPoolForward& op) {
  absl::Status status = RequireTypes("mean pool", {{"x", op.x}, {"y", op.y}});
  status.Update(CheckShape(op));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    const int64_t n = op.batch * op.channels;
    Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, MeanPoolKernel, op.x.As<float>(),
           op.y.As<float>(), op.pixels, op.channels, n);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const MeanPoolBackward& op) {
  absl::Status status = RequireTypes("mean pool backward", {{"dy", op.dy}, {"dx", op.dx}});
  status.Update(CheckShape(op));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    const int64_t n = op.batch * op.pixels * op.channels;
    Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, MeanPoolBackwardKernel,
           op.dy.As<float>(), op.dx.As<float>(), op.pixels, op.channels, n);
  }};
}

}  // namespace trainyard::kernels::cuda
