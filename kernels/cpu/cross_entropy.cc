#include <algorithm>

#include "kernels/cpu/bugs.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const CrossEntropy& op) {
  const int64_t grain = GrainOf(op.classes);
  return ForElement(op.logits.dtype, [&]<typename T>() {
    const CrossEntropyRows<T> all{.logits = op.logits.As<T>(),
                                  .targets = op.targets.As<int32_t>(),
                                  .losses = op.losses.As<float>(),
                                  .z_losses = OptionalAs<float>(op.z_losses),
                                  .correct = OptionalAs<float>(op.correct),
                                  .dlogits = OptionalAs<T>(op.dlogits),
                                  .rows = op.rows,
                                  .classes = op.classes,
                                  .step = op.row_stride(),
                                  .scale = op.scale,
                                  .smoothing = op.smoothing,
                                  .z_loss = op.z_loss};
    return Kernel{[run = LoopsOf<T>(vectors_).cross_entropy, threads = threads_, all, grain,
                   state = StepStateOf(op.state)](Stream&) {
      for (int64_t row = 0; row < all.rows; ++row) {
        if (all.targets[row] < all.classes) continue;
        AbortWith(absl::StrCat("cross_entropy: target ", all.targets[row], " in row ", row,
                               "; there are ", all.classes, " classes"));
      }
      ParallelRuns(threads, all.rows, grain, [&](int64_t begin, int64_t end) {
        CrossEntropyRows<T> rows = all;
        rows.logits += begin * all.step;
        rows.targets += begin;
        rows.losses += begin;
        if (rows.z_losses != nullptr) rows.z_losses += begin;
        if (rows.correct != nullptr) rows.correct += begin;
        if (rows.dlogits != nullptr) rows.dlogits += begin * all.step;
        rows.rows = end - begin;
        if (state != nullptr) rows.scale *= state->loss_scale;
        run(rows);
      });
    }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const CountTargets& op) {
  return Kernel{[targets = op.targets.As<int32_t>(), count = op.count.As<double>(), n = op.n,
                 accumulate = op.accumulate](Stream&) {
    const auto here = std::count_if(targets, targets + n, [](int32_t t) { return t >= 0; });
    *count = (accumulate ? *count : 0.0) + static_cast<double>(here);
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const Sum& op) {
  return ReduceToDouble(threads_, vectors_.sum, op.x.As<float>(), op.n, op.sum.As<double>(),
                        op.accumulate);
}

}  // namespace trainyard::kernels
