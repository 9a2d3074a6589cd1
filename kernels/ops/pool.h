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

  const char* Problem() const {
    if (batch < 1 || height < 1 || width < 1 || channels < 1) return "the images are empty";
    if (window < 1 || window > 15 || stride < 1) return "window is not in [1, 15], or stride is 0";
    if (pad < 0 || 2 * pad > window) return "pad is more than half of the window";
    const bool fits = window <= height + 2 * pad && window <= width + 2 * pad;
    return fits ? nullptr : "the window does not fit into the padded image";
  }
};

// Largest of each window.
//   x: [batch, height, width, channels] E; y: [batch, out_height, out_width, channels] E
//   index: u8, as y: place of the first maximum within its window, row by row
template <typename T>
struct MaxPoolForwardOf {
  static constexpr const char* kName = "max_pool";
  T x, y, index;
  PoolShape shape;

  const char* Problem() const { return shape.Problem(); }
  TY_FIELDS(Read(x, E), Write(y, E), Write(index, U8), shape)
};
using MaxPoolForward = MaxPoolForwardOf<Buffer>;

// dy: as y; dx: as x, overwritten: for each pixel the sum of dy over the windows whose maximum it
// was, window by window in row order.
template <typename T>
struct MaxPoolBackwardOf {
  static constexpr const char* kName = "max_pool_backward";
  T dy, index, dx;
  PoolShape shape;

  const char* Problem() const { return shape.Problem(); }
  TY_FIELDS(Read(dy, E), Read(index, U8), Write(dx, E), shape)
};
using MaxPoolBackward = MaxPoolBackwardOf<Buffer>;

}  // namespace trainyard::kernels
