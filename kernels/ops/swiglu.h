#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y = silu(gate) * up, silu(g) = g / (1 + e^-g)   (Shazeer 2020)
//   x: [rows, 2 * cols], a row is its gate, then its up; y: [rows, cols]; E
struct SwiGluForward {
  Buffer x, y;
  int64_t rows = 0, cols = 0;
};

// dy: as y; dx: as x, overwritten; dx may be x.
struct SwiGluBackward {
  Buffer x, dy, dx;
  int64_t rows = 0, cols = 0;
};

}  // namespace trainyard::kernels
