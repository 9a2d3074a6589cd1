#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/step_taken.h"
#include "kernels/scratch/sums.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {
namespace {

constexpr int64_t kEach = scratch::kReductionRun;

LambRange RangeOf(const LambStep& op) {
  const double t = static_cast<double>(StepStateOf(op.state)->updates + 1);
  return {.w = op.w.As<float>() + op.offset,
          .m = op.m.As<float>() + op.offset,
          .v = op.v.As<float>() + op.offset,
          .grad = op.grad.As<float>() + op.offset,
          .n = op.n,
          .grad_scale = op.grad_scale ? *op.grad_scale.As<float>() : 1.0f,
          .beta1 = op.beta1,
          .beta2 = op.beta2,
          .epsilon = op.epsilon,
          .weight_decay = op.weight_decay,
          .inverse_c1 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(op.beta1), t))),
          .inverse_sqrt_c2 =
              static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(op.beta2), t)))};
}

LambRange Part(LambRange range, int64_t begin, int64_t end) {
  range.w += begin;
  range.m += begin;
  range.v += begin;
  range.grad += begin;
  range.n = end - begin;
  return range;
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const LambStep& op) {
  const int64_t count = scratch::Ceil(op.n, kEach);
  Kernel kernel;
  kernel.scratch_bytes = op.adapt ? 2 * scratch::Reduction(op.n) : 0;
  kernel.launch = [moments = vectors_.lamb_moments, step = vectors_.lamb_step, threads = threads_,
                   op, count](Stream& stream) {
    if (!IsTaken(op.grad_scale)) return;
    const LambRange all = RangeOf(op);
    const float lr = StepStateOf(op.state)->learning_rate * op.learning_rate_scale;
    double* const w = static_cast<double*>(stream.scratch);
    double* const u = w + count;
    ParallelFor(threads, count, 1, [&](int64_t i) {
      const LambRange range = Part(all, i * kEach, std::min(op.n, (i + 1) * kEach));
      const LambSquares squares = moments(range);
      if (op.adapt) {
        w[i] = squares.w;
        u[i] = squares.u;
      } else {
        step(range, lr);
      }
    });
    if (!op.adapt) return;
    const double of_w = SumPairwise(w, count), of_u = SumPairwise(u, count);
    const float ratio = of_w > 0 && of_u > 0 ? static_cast<float>(std::sqrt(of_w / of_u)) : 1.0f;
    ParallelRuns(threads, op.n, kEach,
                 [&](int64_t begin, int64_t end) { step(Part(all, begin, end), lr * ratio); });
  };
  return kernel;
}

}  // namespace trainyard::kernels
