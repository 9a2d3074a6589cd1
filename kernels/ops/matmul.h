#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// c = op(a) op(b) + bias            when !accumulate
// c = op(a) op(b) + bias + c        when accumulate
//   op(a): [m, k]; stored [m, k], or [k, m] when transpose_a
//   op(b): [k, n]; stored [k, n], or [n, k] when transpose_b
//   bias:  [n], optional; c: [m, n], overlaps nothing
struct Matmul {
  Buffer a, b, bias, c;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

}  // namespace trainyard::kernels
