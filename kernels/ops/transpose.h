#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y[b, j, i] = x[b, i, j]; x: [batch, rows, cols], y: [batch, cols, rows]; E. Does
// not overlap.
struct Transpose {
  Buffer x, y;
  int64_t batch = 1, rows = 0, cols = 0;
};

}  // namespace trainyard::kernels
