#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Rows side by side: y[r, :] = a[r, :], then b[r, :].
//   a: [rows, a_cols], or with repeat_a one row [a_cols] in front of every row; b: [rows, b_cols]
//   y: [rows, a_cols + b_cols]; overlaps nothing
// An operand that is absent counts as zeros.
struct Concat {
  Buffer a, b, y;
  int64_t rows = 0, a_cols = 0, b_cols = 0;
  bool repeat_a = false;
};

// The two parts of each row: a[r, :] = x[r, 0 : a_cols], b[r, :] = the rest of x[r, :]. Either part
// may be absent; overlaps nothing.
struct Split {
  Buffer x, a, b;
  int64_t rows = 0, a_cols = 0, b_cols = 0;
};

}  // namespace trainyard::kernels
