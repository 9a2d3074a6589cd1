#include "kernels/ops/dropout.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {
namespace {

constexpr int64_t kPerDraw = 4;  // elements of one Philox call

// Elements [begin, begin + n) of a sample, wherever a call begins.
template <typename T>
void DropAnywhere(void (*drop)(const DropoutRange<T>&), const DropoutRange<T>& range) {
  if (range.begin % kPerDraw == 0) return drop(range);
  constexpr int64_t kPiece = 256;
  T piece[kPiece + kPerDraw] = {};
  for (int64_t done = 0; done < range.n; done += kPiece) {
    const int64_t begin = range.begin + done, before = begin % kPerDraw;
    const int64_t n = std::min(kPiece, range.n - done);
    std::copy_n(range.x + done, n, piece + before);
    DropoutRange<T> part = range;
    part.x = part.y = piece;
    part.begin = begin - before;
    part.n = before + n;
    drop(part);
    std::copy_n(piece + before, n, range.y + done);
  }
}

}  // namespace

// Samples are cut into pieces of a fixed length, so that a batch of one large sample gives work to
// all threads, too.
absl::StatusOr<Kernel> CpuDevice::Bind(const Dropout& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).dropout, threads = threads_, op](Stream&) {
      constexpr int64_t kPiece = 4096;
      const StepState& state = *StepStateOf(op.state);
      if (op.cols > 0) {
        const int64_t rows = op.per_sample / op.cols;
        const int64_t grain = std::max<int64_t>(1, kPiece / op.cols);
        ParallelFor(threads, op.rows_here(), grain, [&](int64_t i) {
          const int64_t row = op.first_row + i;  // of all samples
          DropAnywhere(run, {.x = op.x.As<T>() + i * op.cols,
                             .y = op.y.As<T>() + i * op.cols,
                             .begin = row % rows * op.all_cols + op.first_col,
                             .n = op.cols,
                             .seed = state.seed,
                             .stream = op.stream,
                             .step = state.step,
                             .sample = state.first_sample + row / rows,
                             .p = op.p});
        });
        return;
      }
      const int64_t pieces = (op.per_sample + kPiece - 1) / kPiece;
      const int64_t grain = std::max<int64_t>(1, kPiece / op.per_sample);
      ParallelFor(threads, op.samples * pieces, grain, [&](int64_t i) {
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
      });
    }};
  });
}

}  // namespace trainyard::kernels
