#include "kernels/ops/dropout.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {

// Samples are cut into pieces of a fixed length, so that a batch of one large sample gives work to
// all threads, too.
absl::StatusOr<Kernel> CpuDevice::Bind(const Dropout& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).dropout, threads = threads_, op](Stream&) {
      constexpr int64_t kPiece = 4096;
      const StepState& state = *StepStateOf(op.state);
      const int64_t pieces = (op.per_sample + kPiece - 1) / kPiece;
      const int64_t grain = std::max<int64_t>(1, kPiece / op.per_sample);
      ParallelRuns(threads, op.samples * pieces, grain, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t sample = i / pieces, begin = i % pieces * kPiece;
          const int64_t at = sample * op.per_sample + begin;
          run({.x = op.x.As<T>() + at,
               .y = op.y.As<T>() + at,
               .begin = begin,
               .n = std::min(kPiece, op.per_sample - begin),
               .seed = state.seed,
               .stream = op.stream,
               .step = state.step,
               .sample = state.first_sample + sample,
               .p = op.p});
        }
      });
    }};
  });
}

}  // namespace trainyard::kernels
