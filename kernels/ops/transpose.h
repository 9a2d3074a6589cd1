#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y[b, j, i] = x[b, i, j]; x: [batch, rows, cols], y: [batch, cols, rows]; E. x and y do not
// overlap.
template <typename T>
struct TransposeOf {
  static constexpr const char* kName = "transpose";
  T x, y;
  int64_t batch = 1, rows = 0, cols = 0;
  TY_FIELDS(Read(x, E), Write(y, E), batch, rows, cols)
};
using Transpose = TransposeOf<Buffer>;

}  // namespace trainyard::kernels
