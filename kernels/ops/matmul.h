#pragma once

#include "kernels/buffer.h"

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
struct Matmul {
  Buffer a, b, bias, c;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  float scale = 1;
  // Elements from one stored row to the next; 0: the rows are dense.
  int64_t a_stride = 0, c_stride = 0;

  int64_t stored_a_cols() const { return transpose_a ? m : k; }
  int64_t step_of_a() const { return a_stride > 0 ? a_stride : stored_a_cols(); }
  int64_t step_of_c() const { return c_stride > 0 ? c_stride : n; }
  // Scale and strides are as said above.
  bool valid() const {
    return step_of_a() >= stored_a_cols() && step_of_c() >= n && (scale == 1 || !bias);
  }
};

}  // namespace trainyard::kernels
