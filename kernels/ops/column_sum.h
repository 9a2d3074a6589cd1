#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y[c] = sum over r of x[r, c] (+ y[c] when accumulate); x: [rows, cols] E, y: [cols].
// The rows of x may lie apart. The order of addition is a function of rows, cols and cuts only: the
// sums of cut c of `cuts`, rows from rows * c / cuts to rows * (c + 1) / cuts, are made apart and
// added in the tree of kernels/ops/add_parts.h.
template <typename T>
struct ColumnSumOf {
  static constexpr const char* kName = "column_sum";
  T x, y;
  int64_t rows = 0, cols = 0;
  bool accumulate = false;
  int64_t cuts = 1;

  const char* Problem() const { return row_stride() < cols ? "rows of x overlap" : nullptr; }
  int64_t row_stride() const { return x.row_stride == 0 ? cols : x.row_stride; }
  TY_FIELDS(WithRowStride(Read(x, E)), WriteOrAdd(y, accumulate), rows, cols, accumulate, cuts)
};
using ColumnSum = ColumnSumOf<Buffer>;

}  // namespace trainyard::kernels
