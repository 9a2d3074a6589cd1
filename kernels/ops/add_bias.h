#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y[r, c] = x[r, c] + bias[c]; x, y: [rows, cols], bias: [cols]; y may be x.
struct AddBias {
  Buffer x, bias, y;
  int64_t rows = 0, cols = 0;
};

}  // namespace trainyard::kernels
