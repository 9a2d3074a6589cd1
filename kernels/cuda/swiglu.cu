#include "kernels/ops/swiglu.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// A thread per element of y.
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(const float* x, float* y, int64_t rows, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * cols) return;
  const int64_t at = i / cols * 2 * cols + i % cols;
  const float gate = x[at];
  y[i] = gate * Sigmoid(gate) * x[at + cols];
}

// With s = Sigmoid(g): dup = dy g s,  dgate = dy u (s + g s (1 - s)). A thread writes what it alone
// read: dx may be x.
__global__ void __launch_bounds__(kThreads)
    SwiGluBackwardKernel(const float* x, const float* dy, float* dx, int64_t rows, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * cols) return;
  const int64_t at = i / cols * 2 * cols + i % cols;
  const float g = x[at], u = x[at + cols], s = Sigmoid(g);
  dx[at] = dy[i] * u * s * (1.0f + g * (1.0f - s));
  dx[at + cols] = dy[i] * g * s;
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const SwiGluForward& op) {
  absl::Status status = RequireTypes("swiglu", {{"x", op.x}, {"y", op.y}});
  status.Update(RequirePositive("swiglu", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, {.grid = Blocks(CeilDiv(op.rows * op.cols, kThreads))}, SwiGluKernel,
           op.x.As<float>(), op.y.As<float>(), op.rows, op.cols);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const SwiGluBackward& op) {
  absl::Status status =
      RequireTypes("swiglu backward", {{"x", op.x}, {"dy", op.dy}, {"dx", op.dx}});
  status.Update(RequirePositive("swiglu backward", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, {.grid = Blocks(CeilDiv(op.rows * op.cols, kThreads))}, SwiGluBackwardKernel,
           op.x.As<float>(), op.dy.As<float>(), op.dx.As<float>(), op.rows, op.cols);
  }};
}

}  // namespace trainyard::kernels::cuda
