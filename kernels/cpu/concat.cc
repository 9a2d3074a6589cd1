#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

void CopyOrZero(const float* from, float* to, int64_t n) {
  if (from == nullptr) {
    std::memset(to, 0, sizeof(float) * n);
  } else {
    std::memcpy(to, from, sizeof(float) * n);
  }
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const Concat& op) {
  return Kernel{[threads = threads_, op](Stream&) {
    const float *a = op.a.As<float>(), *b = op.b.As<float>();
    const int64_t cols = op.a_cols + op.b_cols;
    ParallelFor(threads, op.rows, GrainOf(cols), [&](int64_t r) {
      float* y = op.y.As<float>() + r * cols;
      CopyOrZero(a == nullptr || op.repeat_a ? a : a + r * op.a_cols, y, op.a_cols);
      CopyOrZero(b == nullptr ? b : b + r * op.b_cols, y + op.a_cols, op.b_cols);
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const Split& op) {
  return Kernel{[threads = threads_, op](Stream&) {
    const int64_t cols = op.a_cols + op.b_cols;
    ParallelFor(threads, op.rows, GrainOf(cols), [&](int64_t r) {
      const float* x = op.x.As<float>() + r * cols;
      if (op.a) std::memcpy(op.a.As<float>() + r * op.a_cols, x, sizeof(float) * op.a_cols);
      if (!op.b) return;
      std::memcpy(op.b.As<float>() + r * op.b_cols, x + op.a_cols, sizeof(float) * op.b_cols);
    });
  }};
}

}  // namespace trainyard::kernels
