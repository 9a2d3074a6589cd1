#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y[b, c] = mean over the pixels of x[b, :, c]; x: [batch, pixels, channels], y: [batch, channels];
// E.
template <typename T>
struct MeanPoolForwardOf {
  static constexpr const char* kName = "mean_pool";
  T x, y;
  int64_t batch = 0, pixels = 0, channels = 0;
  TY_FIELDS(Read(x, E), Write(y, E), batch, pixels, channels)
};
using MeanPoolForward = MeanPoolForwardOf<Buffer>;

// dx[b, p, c] = dy[b, c] / pixels, overwritten; E.
template <typename T>
struct MeanPoolBackwardOf {
  static constexpr const char* kName = "mean_pool_backward";
  T dy, dx;
  int64_t batch = 0, pixels = 0, channels = 0;
  TY_FIELDS(Read(dy, E), Write(dx, E), batch, pixels, channels)
};
using MeanPoolBackward = MeanPoolBackwardOf<Buffer>;

}  // namespace trainyard::kernels
