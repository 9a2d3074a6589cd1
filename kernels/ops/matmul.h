#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// c = op(a) op(b) + bias            when !accumulate
// c = op(a) op(b) + bias + c        when accumulate
//   op(a): [m, k] E; stored [m, k], or [k, m] when transpose_a
//   op(b): [k, n] E; stored [k, n], or [n, k] when transpose_b
//   bias:  [n], optional, may be rounded to the type of c first; c: [m, n], E or f32, overlaps
//          nothing
struct Matmul {
  Buffer a, b, bias, c;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

}  // namespace trainyard::kernels
