#include "kernels/ops/concat.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {
namespace {

// A thread per element of y; a_row: floats from a row of a to the next, 0 when it repeats.
__global__ void __launch_bounds__(kThreads)
    ConcatKernel(const float* a, const float* b, float* y, int64_t rows, int64_t a_cols,
                 int64_t b_cols, int64_t a_row) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t cols = a_cols + b_cols;
  if (i >= rows * cols) return;
  const int64_t row = i / cols, col = i % cols;
  if (col < a_cols) {
    y[i] = a == nullptr ? 0.0f : a[row * a_row + col];
  } else {
    y[i] = b == nullptr ? 0.0f : b[row * b_cols + col - a_cols];
  }
}

// A thread per element of x.
__global__ void __launch_bounds__(kThreads)
    SplitKernel(const float* x, float* a, float* b, int64_t rows, int64_t a_cols, int64_t b_cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t cols = a_cols + b_cols;
  if (i >= rows * cols) return;
  const int64_t row = i / cols, col = i % cols;
  if (col < a_cols) {
    if (a != nullptr) a[row * a_cols + col] = x[i];
  } else {
    if (b != nullptr) b[row * b_cols + col - a_cols] = x[i];
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const Concat& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, ThreadForEach(op.rows * (op.a_cols + op.b_cols)), ConcatKernel, op.a.As<float>(),
           op.b.As<float>(), op.y.As<float>(), op.rows, op.a_cols, op.b_cols,
           op.repeat_a ? 0 : op.a_cols);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const Split& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, ThreadForEach(op.rows * (op.a_cols + op.b_cols)), SplitKernel, op.x.As<float>(),
           op.a.As<float>(), op.b.As<float>(), op.rows, op.a_cols, op.b_cols);
  }};
}

}  // namespace trainyard::kernels::cuda
