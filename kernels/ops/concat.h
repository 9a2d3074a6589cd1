#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Rows side by side: y[r, :] = a[r, :], then b[r, :].
//   a: [rows, a_cols], or with repeat_a one row [a_cols] in front of every row; b: [rows, b_cols]
//   y: [rows, a_cols + b_cols]; overlaps neither a nor b
// An operand that is absent counts as zeros.
template <typename T>
struct ConcatOf {
  static constexpr const char* kName = "concat";
  T a, b, y;
  int64_t rows = 0, a_cols = 0, b_cols = 0;
  bool repeat_a = false;
  TY_FIELDS(Read(a, Optional()), Read(b, Optional()), Write(y), rows, a_cols, b_cols, repeat_a)
};
using Concat = ConcatOf<Buffer>;

// The two parts of each row: a[r, :] = x[r, 0 : a_cols], b[r, :] = the rest of x[r, :]. Either part
// may be absent; neither overlaps x.
template <typename T>
struct SplitOf {
  static constexpr const char* kName = "split";
  T x, a, b;
  int64_t rows = 0, a_cols = 0, b_cols = 0;
  TY_FIELDS(Read(x), Write(a, Optional()), Write(b, Optional()), rows, a_cols, b_cols)
};
using Split = SplitOf<Buffer>;

}  // namespace trainyard::kernels
