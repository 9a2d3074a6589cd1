#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// c = scale op(a) op(b) + bias            when !accumulate
// c = scale op(a) op(b) + bias + c        when accumulate
//   op(a): [m, k] E; stored [m, k], or [k, m] when transpose_a
//   op(b): [k, n] E; stored [k, n], or [n, k] when transpose_b
//   bias:  [n], optional, absent where scale is not 1, may be rounded to the type of c first
//   c: [m, n], E or f32, overlaps nothing
// The rows of a and c may lie apart, be it that they are columns of wider matrices; what lies
// between is neither read nor written. They then need no alignment but that of their elements. In
// bf16 on a CPU with instructions for it the bits of c do not depend on whether they do; elsewhere
// a library may add long sums in another order.
template <typename T>
struct MatmulOf {
  static constexpr const char* kName = "matmul";
  T a, b, bias, c;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  float scale = 1;
  // a, as stored, is the columns of `a` from `a_first` on, which has `a_cols`; 0: all of it.
  int64_t a_cols = 0, a_first = 0;

  int64_t stored_a_cols() const { return transpose_a ? m : k; }
  int64_t a_row_stride() const { return a.row_stride > 0 ? a.row_stride : stored_a_cols(); }
  int64_t c_row_stride() const { return c.row_stride > 0 ? c.row_stride : n; }
  // Scale and strides are as said above, and a_cols is 0.
  bool valid() const {
    return a_cols == 0 && a_row_stride() >= stored_a_cols() && c_row_stride() >= n &&
           (scale == 1 || !bias);
  }
  // The same product with the columns of `a` as a matrix whose rows lie apart.
  MatmulOf OnColumns() const {
    MatmulOf op = *this;
    if (a_cols > 0) op.a = a.From(a_first).WithRowStride(a_cols);
    op.a_cols = op.a_first = 0;
    return op;
  }
  TY_FIELDS(WithRowStride(Read(a)), Read(b), Read(bias), WithRowStride(WriteOrAdd(c, accumulate)),
            m, n, k, transpose_a, transpose_b, accumulate, scale, a_cols, a_first)
};
using Matmul = MatmulOf<Buffer>;

}  // namespace trainyard::kernels
