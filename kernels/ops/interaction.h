#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Dot products of all pairs of features (Naumov et al. 2019). With z[b, 0] = x[b] and
// z[b, 1 + t] = e[b, t]:
//   y[b, 0 : width] = x[b];  y[b, width + i (i - 1) / 2 + j] = z[b, i] . z[b, j] for j < i
//   x: [batch, width], e: [batch, count, width], y: [batch, width + count (count + 1) / 2]; E
struct InteractionForward {
  Buffer x, e, y;
  int64_t batch = 0, count = 0, width = 0;
};

// dy, dx and de: E; dx and de are overwritten. Each of these is optional.
struct InteractionBackward {
  Buffer dy, x, e, dx, de;
  int64_t batch = 0, count = 0, width = 0;
};

}  // namespace trainyard::kernels
