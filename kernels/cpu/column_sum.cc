#include "kernels/ops/column_sum.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_cuts.h"
#include "kernels/scratch/sums.h"

namespace trainyard::kernels {

namespace {

// Sums fixed runs of rows, in parallel; then adds the partial sums, from the first to the last.
template <typename T>
void SumRows(const VectorTable& vectors, int threads, const T* x, int64_t rows, int64_t cols,
             int64_t step, float* sums, float* y, bool accumulate) {
  const int64_t partials = scratch::Partials(rows), each = scratch::RowsPerPartial(rows);
  ParallelFor(threads, partials, GrainOf(each * cols), [&](int64_t p) {
    LoopsOf<T>(vectors).column_sum(x + p * each * step, std::min(each, rows - p * each), cols, step,
                                   sums + p * cols);
  });
  const int64_t cols_each = std::max<int64_t>(16, kSerialElements / partials / 16 * 16);
  ParallelRuns(threads, cols, cols_each, [&](int64_t begin, int64_t end) {
    // The first partial row takes the total.
    vectors.f32.column_sum(sums + begin, partials, end - begin, cols, sums + begin);
    AddOrCopy(vectors, sums + begin, y + begin, end - begin, accumulate);
  });
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const ColumnSum& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    Kernel kernel;
    kernel.scratch_bytes = scratch::CutRowSums(op.rows, op.cols, op.cuts);
    kernel.launch = [&vectors = vectors_, threads = threads_, op](Stream& stream) {
      const T* const x = op.x.As<T>();
      float* const y = op.y.As<float>();
      auto* const sums = static_cast<float*>(stream.scratch);
      const int64_t step = op.row_stride();
      if (op.cuts == 1) {
        return SumRows(vectors, threads, x, op.rows, op.cols, step, sums, y, op.accumulate);
      }
      float* const of_cuts = sums + scratch::CutPartials(op.rows, op.cuts) * op.cols;
      SumCuts(vectors, op.rows, op.cols, op.cuts, of_cuts,
              [&](int64_t first, int64_t end, float* to) {
                SumRows(vectors, threads, x + first * step, end - first, op.cols, step, sums, to,
                        /*accumulate=*/false);
              });
      AddOrCopy(vectors, of_cuts, y, op.cols, op.accumulate);
    };
    return kernel;
  });
}

}  // namespace trainyard::kernels
