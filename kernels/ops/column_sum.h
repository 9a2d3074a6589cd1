#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y[c] = sum over r of x[r, c] (+ y[c] when accumulate); x: [rows, cols] E, y: [cols].
// The order of addition is a function of rows and cols only.
struct ColumnSum {
  Buffer x, y;
  int64_t rows = 0, cols = 0;
  bool accumulate = false;
};

}  // namespace trainyard::kernels
