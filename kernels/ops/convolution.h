#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Cross-correlation as PyTorch's conv2d.
//   x: [batch, height, width, in] E; y: [batch, out_height, out_width, out] E
//   w: [out, in / groups, kernel_height, kernel_width] E; bias: [out], optional
//   groups divides in and out: the g-th share of the outputs sees the g-th share of the inputs
//   out_height = (height + 2 * pad - kernel_height) / stride + 1, alike for width
struct ConvolutionShape {
  int64_t batch = 0, height = 0, width = 0, in = 0, out = 0;
  int64_t kernel_height = 1, kernel_width = 1, stride = 1, pad = 0;
  int64_t groups = 1;

  int64_t out_height() const { return (height + 2 * pad - kernel_height) / stride + 1; }
  int64_t out_width() const { return (width + 2 * pad - kernel_width) / stride + 1; }
};

// y may be rounded to E before the bias is added, too.
struct ConvolutionForward {
  Buffer x, w, bias, y;
  ConvolutionShape shape;
};

// dy: as y; dx: as x, overwritten.
struct ConvolutionBackwardData {
  Buffer dy, w, dx;
  ConvolutionShape shape;
};

// dw (+)= gradient by w; dbias (+)= gradient by bias, optional; both f32. The gradient by w may be
// rounded to E before it is added.
struct ConvolutionBackwardWeights {
  Buffer x, dy, dw, dbias;
  ConvolutionShape shape;
  bool accumulate = false;
};

}  // namespace trainyard::kernels
