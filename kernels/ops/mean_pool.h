#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y[b, c] = mean over the pixels of x[b, :, c]; x: [batch, pixels, channels], y: [batch, channels];
// E.
struct MeanPoolForward {
  Buffer x, y;
  int64_t batch = 0, pixels = 0, channels = 0;
};

// dx[b, p, c] = dy[b, c] / pixels, overwritten; E.
struct MeanPoolBackward {
  Buffer dy, dx;
  int64_t batch = 0, pixels = 0, channels = 0;
};

}  // namespace trainyard::kernels
