#include "kernels/ops/concat.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/require.h"

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

template <typename Op>
absl::Status CheckCols(const char* name, const Op& op) {
  return RequirePositive(name, {{"rows", op.rows}, {"a_cols", op.a_cols}, {"b_cols", op.b_cols}});
}

template <typename Op>
dim3 GridOf(const Op& op) {
  return Blocks(CeilDiv(op.rows * (op.a_cols + op.b_cols), kThreads));
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const Concat& op) {
  absl::Status status = RequireTypes("concat", {{.name = "a", .buffer = op.a, .optional = true},
                                                {.name = "b", .buffer = op.b, .optional = true},
                                                {"y", op.y}});
  status.Update(CheckCols("concat", op));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, {.grid = GridOf(op)}, ConcatKernel, op.a.As<float>(), op.b.As<float>(),
           op.y.As<float>(), op.rows, op.a_cols, op.b_cols, op.repeat_a ? 0 : op.a_cols);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const Split& op) {
  absl::Status status = RequireTypes("split", {{"x", op.x},
                                               {.name = "a", .buffer = op.a, .optional = true},
                                               {.name = "b", .buffer = op.b, .optional = true}});
  status.Update(CheckCols("split", op));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, {.grid = GridOf(op)}, SplitKernel, op.x.As<float>(), op.a.As<float>(),
           op.b.As<float>(), op.rows, op.a_cols, op.b_cols);
  }};
}

}  // namespace trainyard::kernels::cuda
