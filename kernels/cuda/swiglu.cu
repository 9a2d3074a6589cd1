#include "kernels/ops/swiglu.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// A thread per element of y.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(const T* x, T* y, int64_t rows, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * cols) return;
  const int64_t at = i / cols * 2 * cols + i % cols;
  const float gate = ToFloat(x[at]);
  y[i] = FromFloat<T>(gate * Sigmoid(gate) * ToFloat(x[at + cols]));
}

// With s = Sigmoid(g): dup = dy g s,  dgate = dy u (s + g s (1 - s)). A thread writes what it alone
// read: dx may be x.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SwiGluBackwardKernel(const T* x, const T* dy, T* dx, int64_t rows, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * cols) return;
  const int64_t at = i / cols * 2 * cols + i % cols;
  const float g = ToFloat(x[at]), u = ToFloat(x[at + cols]), d = ToFloat(dy[i]), s = Sigmoid(g);
  dx[at] = FromFloat<T>(d * u * s * (1.0f + g * (1.0f - s)));
  dx[at + cols] = FromFloat<T>(d * g * s);
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const SwiGluForward& op) {
  const DType type = op.x.dtype;
  absl::Status status = RequireTypes("swiglu", {{"x", op.x, type}, {"y", op.y, type}});
  status.Update(RequirePositive("swiglu", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  return ForElement("swiglu", type, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      Launch(stream, {.grid = Blocks(CeilDiv(op.rows * op.cols, kThreads))}, SwiGluKernel<T>,
             op.x.As<T>(), op.y.As<T>(), op.rows, op.cols);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const SwiGluBackward& op) {
  const DType type = op.x.dtype;
  absl::Status status = RequireTypes("swiglu backward",
                                     {{"x", op.x, type}, {"dy", op.dy, type}, {"dx", op.dx, type}});
  status.Update(RequirePositive("swiglu backward", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  return ForElement("swiglu backward", type, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      Launch(stream, {.grid = Blocks(CeilDiv(op.rows * op.cols, kThreads))},
             SwiGluBackwardKernel<T>, op.x.As<T>(), op.dy.As<T>(), op.dx.As<T>(), op.rows, op.cols);
    }};
  });
}

}  // namespace trainyard::kernels::cuda
