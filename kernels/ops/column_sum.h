#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y[c] = sum over r of x[r, c] (+ y[c] when accumulate); x: [rows, cols] E, y: [cols].
// The order of addition is a function of rows and cols only.
struct ColumnSum {
  Buffer x, y;
  int64_t rows = 0, cols = 0;
  bool accumulate = false;
  // Elements from one row of x to the next, at least `cols`; 0: the rows are dense.
  int64_t row_stride = 0;

  int64_t step() const { return row_stride == 0 ? cols : row_stride; }
};

}  // namespace trainyard::kernels
