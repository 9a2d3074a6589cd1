#include "kernels/ops/binary_cross_entropy.h"

#include "kernels/cpu/bugs.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/for_element.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const BinaryCrossEntropy& op) {
  const BinaryCrossEntropyRows all{.logits = op.logits.As<float>(),
                                   .targets = op.targets.As<int32_t>(),
                                   .losses = op.losses.As<float>(),
                                   .correct = OptionalAs<float>(op.correct),
                                   .dlogits = OptionalAs<float>(op.dlogits),
                                   .rows = op.rows,
                                   .scale = op.scale};
  return Kernel{[run = vectors_.binary_cross_entropy, threads = threads_, all,
                 state = StepStateOf(op.state)](Stream&) {
    for (int64_t row = 0; row < all.rows; ++row) {
      if (all.targets[row] <= 1) continue;
      AbortWith(absl::StrCat("binary_cross_entropy: target ", all.targets[row], " in row ", row,
                             " is neither 0 nor 1"));
    }
    ParallelRuns(threads, all.rows, kSerialElements, [&](int64_t begin, int64_t end) {
      BinaryCrossEntropyRows rows = all;
      rows.logits += begin;
      rows.targets += begin;
      rows.losses += begin;
      if (rows.correct != nullptr) rows.correct += begin;
      if (rows.dlogits != nullptr) rows.dlogits += begin;
      rows.rows = end - begin;
      if (state != nullptr) rows.scale *= state->loss_scale;
      run(rows);
    });
  }};
}

}  // namespace trainyard::kernels
