#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// c = scale op(a) op(b) + bias            when !accumulate
// c = scale op(a) op(b) + bias + c        when accumulate
//   op(a): [m, k] E; stored [m, k], or [k, m] when transpose_a
//   op(b): [k, n] E; stored [k, n], or [n, k] when transpose_b
//   bias:  [n], optional, absent if scale is not 1, may be rounded to the type of c first
//   c: [m, n], E or f32, overlaps no other operand
// On a GPU, the product may be rounded to a c of 16 bits before the bias or what was in c is added.
// The rows of a and c may lie apart, as columns of a wider matrix do; what lies between is neither
// read nor written unless the buffer is padded, and they need only the alignment of their elements.
// In bf16 on a CPU with bf16 instructions the bits of c are the same whether rows lie apart or not;
// elsewhere a library may add long sums in another order.
template <typename T>
struct MatmulOf {
  static constexpr const char* kName = "matmul";
  T a, b, bias, c;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  float scale = 1;
  // If a_cols > 0, the buffer `a` has a_cols columns and the operand is those from a_first on, as
  // many as it needs; 0: the operand is all of `a`.
  int64_t a_cols = 0, a_first = 0;

  int64_t stored_a_cols() const { return transpose_a ? m : k; }
  int64_t a_row_stride() const { return a.row_stride > 0 ? a.row_stride : stored_a_cols(); }
  int64_t c_row_stride() const { return c.row_stride > 0 ? c.row_stride : n; }
  const char* Problem() const {
    if (a_cols > 0 && a_first + stored_a_cols() > a_cols) return "a has too few columns";
    const MatmulOf on = OnColumns();
    if (on.a_row_stride() < stored_a_cols() || on.c_row_stride() < n) return "rows overlap";
    return scale == 1 || !bias ? nullptr : "a bias beside a scale";
  }
  // The same product with the columns of `a` as a buffer whose rows lie apart, and a_cols 0.
  MatmulOf OnColumns() const {
    MatmulOf op = *this;
    if (a_cols > 0) op.a = a.From(a_first).WithRowStride(a_cols);
    op.a_cols = op.a_first = 0;
    return op;
  }
  TY_FIELDS(WithRowStride(Read(a, E)), Read(b, E), Read(bias, Optional()),
            WithRowStride(WriteOrAdd(c, accumulate, EOrF32)), m, n, k, transpose_a, transpose_b,
            accumulate, scale, MayBeZero(a_cols), MayBeZero(a_first))
};
using Matmul = MatmulOf<Buffer>;

}  // namespace trainyard::kernels
