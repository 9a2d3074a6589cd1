#pragma once

// Sums on the CPU: each is cut into runs by its length alone, never by the number of threads, so
// that its bits do not depend on them.

#include <algorithm>

#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::scratch {

// Sums over the rows of a matrix: at most 64 runs of at least 32 rows, each with a partial sum.
constexpr int64_t RowsPerPartial(int64_t rows) { return std::max<int64_t>(32, Ceil(rows, 64)); }
constexpr int64_t Partials(int64_t rows) { return Ceil(rows, RowsPerPartial(rows)); }
constexpr int64_t RowSums(int64_t rows, int64_t cols) { return kFloat * Partials(rows) * cols; }

// The same with the rows cut (kernels/ops/column_sum.h), each cut summed by itself: the partial
// sums of one cut, and the sum of each.
constexpr int64_t CutPartials(int64_t rows, int64_t cuts) {
  const int64_t longest = Ceil(rows, cuts);  // others have one row less, which may be more runs
  return std::max(Partials(longest), longest > 1 ? Partials(longest - 1) : 0);
}
constexpr int64_t CutRowSums(int64_t rows, int64_t cols, int64_t cuts) {
  if (cuts == 1) return RowSums(rows, cols);
  return kFloat * (CutPartials(rows, cuts) + cuts) * cols;
}

// Sums of all elements: a partial sum in double precision for each run of this many.
inline constexpr int64_t kReductionRun = 8192;
constexpr int64_t Reduction(int64_t n) { return kDouble * Ceil(n, kReductionRun); }

}  // namespace trainyard::kernels::scratch
