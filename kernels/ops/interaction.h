#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Dot products of all pairs of features (Naumov et al. 2019). With z[b, 0] = x[b] and
// z[b, 1 + t] = e[b, t]:
//   y[b, 0 : width] = x[b];  y[b, width + i (i - 1) / 2 + j] = z[b, i] . z[b, j] for j < i
//   x: [batch, width], e: [batch, count, width], y: [batch, width + count (count + 1) / 2]; E
template <typename T>
struct InteractionForwardOf {
  static constexpr const char* kName = "interaction";
  T x, e, y;
  int64_t batch = 0, count = 0, width = 0;
  TY_FIELDS(Read(x, E), Read(e, E), Write(y, E), batch, count, width)
};
using InteractionForward = InteractionForwardOf<Buffer>;

// dy, dx and de: E. dx and de are overwritten; each is optional.
template <typename T>
struct InteractionBackwardOf {
  static constexpr const char* kName = "interaction_backward";
  T dy, x, e, dx, de;
  int64_t batch = 0, count = 0, width = 0;
  TY_FIELDS(Read(dy, E), Read(x, E), Read(e, E), Write(dx, Optional(E)), Write(de, Optional(E)),
            batch, count, width)
};
using InteractionBackward = InteractionBackwardOf<Buffer>;

}  // namespace trainyard::kernels
