#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y = base, with scale a b^T added to its columns [first, first + n).
//   base, y: [rows, cols] E, y may be base; a: [rows, k] E; b: [n, k] E
struct AddProduct {
  Buffer base, a, b, y;
  int64_t rows = 0, cols = 0, first = 0, n = 0, k = 0;
  float scale = 1;
};

}  // namespace trainyard::kernels
