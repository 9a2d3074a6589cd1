#include "kernels/ops/row_optimizer.h"

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/step_taken.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {
namespace {

// Calls f(offset in grad, offset in the tables) for each row that has a gradient. Rows are
// distinct, so that no two threads write the same one; those of the sample after the next are
// prefetched.
template <typename Op, typename F>
void ForEachRow(int threads, const Op& op, const F& f) {
  constexpr int64_t kAhead = 2;
  const TableList& tables = op.tables.list;
  const int32_t* ids = op.ids.template As<int32_t>();
  const float* w = op.tables.first.template As<float>();
  const int64_t grain = GrainOf(op.width * tables.count);
  ParallelRuns(threads, op.samples, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * tables.count; i < end * tables.count; i += tables.count) {
      const int32_t* ahead = i + kAhead * tables.count < end * tables.count
                                 ? ids + i + kAhead * tables.count
                                 : nullptr;
      for (int64_t t = 0; t < tables.count; ++t) {
        if (ahead != nullptr && ahead[t] >= 0) {
          __builtin_prefetch(w + tables.start[t] + ahead[t] * op.width, 1);
        }
        if (ids[i + t] < 0) continue;
        f((i + t) * op.width, tables.start[t] + ids[i + t] * op.width);
      }
    }
  });
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const SgdRows& op) {
  return Kernel{[run = vectors_.sgd, threads = threads_, op](Stream&) {
    if (!IsTaken(op.grad_scale)) return;
    const SgdRange any{.w = nullptr,
                       .velocity = nullptr,
                       .grad = nullptr,
                       .n = op.width,
                       .grad_scale = op.grad_scale ? *op.grad_scale.As<float>() : 1.0f,
                       .lr = StepStateOf(op.state)->learning_rate * op.learning_rate_scale,
                       .momentum = 0,
                       .weight_decay = 0,
                       .first = false,
                       .nesterov = false};
    ForEachRow(threads, op, [&](int64_t at, int64_t row) {
      SgdRange range = any;
      range.w = op.tables.first.As<float>() + row;
      range.grad = op.grad.As<float>() + at;
      run(range);
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const AdamWRows& op) {
  return Kernel{[run = vectors_.adamw, threads = threads_, op](Stream&) {
    if (!IsTaken(op.grad_scale)) return;
    const AdamWRange any = AdamWRangeOf(op, op.width);
    ForEachRow(threads, op, [&](int64_t at, int64_t row) {
      AdamWRange range = any;
      range.w = op.tables.first.As<float>() + row;
      range.m = op.m.first.As<float>() + row;
      range.v = op.v.first.As<float>() + row;
      range.grad = op.grad.As<float>() + at;
      run(range);
    });
  }};
}

}  // namespace trainyard::kernels
