#pragma once

#include "kernels/ops/matmul.h"

namespace trainyard::kernels {

// y = base, with scale a b^T added to its columns [first, first + n).
//   base, y: [rows, cols] E, y may be base; a: [rows, k] E; b: [n, k] E
template <typename T>
struct AddProductOf {
  static constexpr const char* kName = "add_product";
  T base, a, b, y;
  int64_t rows = 0, cols = 0, first = 0, n = 0, k = 0;
  float scale = 1;

  const char* Problem() const {
    return first + n <= cols ? nullptr : "the columns are not all of y";
  }
  TY_FIELDS(Read(base, E), Read(a, E), Read(b, E), Write(y, E), rows, cols, MayBeZero(first), n, k,
            scale)
};
using AddProduct = AddProductOf<Buffer>;

// The product that is added, once y holds base.
inline Matmul ProductOf(const AddProduct& op) {
  return {.a = op.a,
          .b = op.b,
          .c = op.y.From(op.first).WithRowStride(op.cols),
          .m = op.rows,
          .n = op.n,
          .k = op.k,
          .transpose_b = true,
          .accumulate = true,
          .scale = op.scale};
}

}  // namespace trainyard::kernels
