#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y[r, c] = x[r, c] + bias[c]; x, y: [rows, cols], bias: [cols]; y may be x.
template <typename T>
struct AddBiasOf {
  static constexpr const char* kName = "add_bias";
  T x, bias, y;
  int64_t rows = 0, cols = 0;
  TY_FIELDS(Read(x), Read(bias), Write(y), rows, cols)
};
using AddBias = AddBiasOf<Buffer>;

}  // namespace trainyard::kernels
