#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Windows of window x window pixels, `stride` apart, over an image with `pad` pixels on every side
// that no maximum is taken from; what is left over at the far edges is dropped, as in PyTorch.
struct PoolShape {
  int64_t batch = 0, height = 0, width = 0, channels = 0;
  int64_t window = 2, stride = 2, pad = 0;  // window <= 15, pad <= window / 2

  constexpr int64_t out_height() const { return (height + 2 * pad - window) / stride + 1; }
  constexpr int64_t out_width() const { return (width + 2 * pad - window) / stride + 1; }
};

// Largest of each window.
//   x: [batch, height, width, channels] E; y: [batch, out_height, out_width, channels] E
//   index: u8, as y: place of the first maximum within its window, row by row
template <typename T>
struct MaxPoolForwardOf {
  static constexpr const char* kName = "max_pool";
  T x, y, index;
  PoolShape shape;
  TY_FIELDS(Read(x), Write(y), Write(index), shape)
};
using MaxPoolForward = MaxPoolForwardOf<Buffer>;

// dy: as y; dx: as x, overwritten: for each pixel the sum of dy over the windows whose maximum it
// was, window by window in row order.
template <typename T>
struct MaxPoolBackwardOf {
  static constexpr const char* kName = "max_pool_backward";
  T dy, index, dx;
  PoolShape shape;
  TY_FIELDS(Read(dy), Read(index), Write(dx), shape)
};
using MaxPoolBackward = MaxPoolBackwardOf<Buffer>;

}  // namespace trainyard::kernels
