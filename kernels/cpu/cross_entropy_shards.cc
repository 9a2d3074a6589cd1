#include "kernels/ops/cross_entropy_shards.h"

#include <array>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const CrossEntropyShard& op) {
  return ForElement(op.logits.dtype, [&]<typename T>() {
    return Kernel{
        [run = LoopsOf<T>(vectors_).cross_entropy_shard, threads = threads_, op](Stream&) {
          ParallelRuns(threads, op.rows, GrainOf(op.classes), [&](int64_t begin, int64_t end) {
            run({.logits = op.logits.As<T>() + begin * op.classes,
                 .targets = op.targets.As<int32_t>() + begin,
                 .statistics = op.statistics.As<float>() + begin * kClassStatistics,
                 .rows = end - begin,
                 .classes = op.classes,
                 .first = op.first,
                 .with_mean = op.with_mean,
                 .with_first_largest = op.with_first_largest});
          });
        }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const CrossEntropyOfShards& op) {
  return Kernel{[run = vectors_.cross_entropy_of_shards, threads = threads_, op](Stream&) {
    constexpr int64_t kGrain = 256;  // rows
    ParallelRuns(threads, op.rows, kGrain, [&](int64_t begin, int64_t end) {
      std::array<const float*, TableList::kMost> statistics;
      for (int64_t s = 0; s < op.statistics.list.count; ++s) {
        statistics[s] = op.statistics.At(s).As<float>() + begin * kClassStatistics;
      }
      run({.statistics = statistics.data(),
           .shards = op.statistics.list.count,
           .targets = op.targets.As<int32_t>() + begin,
           .losses = op.losses.As<float>() + begin,
           .z_losses = OptionalAs<float>(op.z_losses, begin),
           .correct = OptionalAs<float>(op.correct, begin),
           .norms = OptionalAs<float>(op.norms, begin * kRowNorm),
           .rows = end - begin,
           .classes = op.classes,
           .smoothing = op.smoothing,
           .z_loss = op.z_loss});
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const CrossEntropyShardGradient& op) {
  return ForElement(op.logits.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).cross_entropy_shard_gradient, threads = threads_, op,
                   state = StepStateOf(op.state)](Stream&) {
      const int64_t grain = GrainOf(op.classes);
      const float scale = state == nullptr ? op.scale : op.scale * state->loss_scale;
      ParallelRuns(threads, op.rows, grain, [&](int64_t begin, int64_t end) {
        run({.logits = op.logits.As<T>() + begin * op.classes,
             .targets = op.targets.As<int32_t>() + begin,
             .norms = op.norms.As<float>() + begin * kRowNorm,
             .dlogits = op.dlogits.As<T>() + begin * op.classes,
             .rows = end - begin,
             .classes = op.classes,
             .first = op.first,
             .all_classes = op.all_classes,
             .scale = scale,
             .smoothing = op.smoothing,
             .z_loss = op.z_loss});
      });
    }};
  });
}

}  // namespace trainyard::kernels
