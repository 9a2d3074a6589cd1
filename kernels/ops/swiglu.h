#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = silu(gate) * up, silu(g) = g / (1 + e^-g)   (Shazeer 2020)
//   x: [rows, 2 * cols], a row is its gate, then its up; y: [rows, cols]; E
template <typename T>
struct SwiGluForwardOf {
  static constexpr const char* kName = "swiglu";
  T x, y;
  int64_t rows = 0, cols = 0;
  TY_FIELDS(Read(x, E), Write(y, E), rows, cols)
};
using SwiGluForward = SwiGluForwardOf<Buffer>;

// dy: as y; dx: as x, overwritten; dx may be x.
template <typename T>
struct SwiGluBackwardOf {
  static constexpr const char* kName = "swiglu_backward";
  T x, dy, dx;
  int64_t rows = 0, cols = 0;
  TY_FIELDS(Read(x, E), Read(dy, E), Write(dx, E), rows, cols)
};
using SwiGluBackward = SwiGluBackwardOf<Buffer>;

}  // namespace trainyard::kernels
