#include "kernels/ops/column_sum.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/scratch/sums.h"

namespace trainyard::kernels {

// Sums fixed runs of rows, in parallel; then adds the partial sums, from the first to the last.
absl::StatusOr<Kernel> CpuDevice::Bind(const ColumnSum& op) {
  const int64_t partials = scratch::Partials(op.rows);
  return ForElement(op.x.dtype, [&]<typename T>() {
    Kernel kernel;
    kernel.scratch_bytes = scratch::RowSums(op.rows, op.cols);
    kernel.launch = [first_sum = LoopsOf<T>(vectors_).column_sum,
                     column_sum = vectors_.f32.column_sum, add = vectors_.f32.add,
                     threads = threads_, x = op.x.As<T>(), y = op.y.As<float>(), rows = op.rows,
                     cols = op.cols, step = op.row_stride(), accumulate = op.accumulate,
                     partials](Stream& stream) {
      float* const sums = static_cast<float*>(stream.scratch);
      const int64_t each = scratch::RowsPerPartial(rows);
      const int64_t grain = std::max<int64_t>(1, kSerialElements / (each * cols));
      ParallelRuns(threads, partials, grain, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) {
          first_sum(x + p * each * step, std::min(each, rows - p * each), cols, step,
                    sums + p * cols);
        }
      });
      const int64_t cols_each = std::max<int64_t>(16, kSerialElements / partials / 16 * 16);
      ParallelRuns(threads, cols, cols_each, [&](int64_t begin, int64_t end) {
        // The first partial row takes the total.
        column_sum(sums + begin, partials, end - begin, cols, sums + begin);
        if (accumulate) {
          add(y + begin, sums + begin, y + begin, end - begin);
        } else {
          std::copy(sums + begin, sums + end, y + begin);
        }
      });
    };
    return kernel;
  });
}

}  // namespace trainyard::kernels
