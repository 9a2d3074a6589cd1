#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Cross-correlation as PyTorch's conv2d.
//   x: [batch, height, width, in] E; y: [batch, out_height, out_width, out] E
//   w: [out, in / groups, kernel_height, kernel_width] E; bias: [out], optional
//   groups divides in and out: the g-th group of outputs sees only the g-th group of inputs
//   out_height = (height + 2 * pad - kernel_height) / stride + 1, alike for width
struct ConvolutionShape {
  int64_t batch = 0, height = 0, width = 0, in = 0, out = 0;
  int64_t kernel_height = 1, kernel_width = 1, stride = 1, pad = 0;
  int64_t groups = 1;

  constexpr int64_t out_height() const { return (height + 2 * pad - kernel_height) / stride + 1; }
  constexpr int64_t out_width() const { return (width + 2 * pad - kernel_width) / stride + 1; }
};

// y may be rounded to E before the bias is added as well as after.
template <typename T>
struct ConvolutionForwardOf {
  static constexpr const char* kName = "convolution";
  T x, w, bias, y;
  ConvolutionShape shape;
  TY_FIELDS(Read(x), Read(w), Read(bias), Write(y), shape)
};
using ConvolutionForward = ConvolutionForwardOf<Buffer>;

// dy: as y; dx: as x, overwritten.
template <typename T>
struct ConvolutionBackwardDataOf {
  static constexpr const char* kName = "convolution_dx";
  T dy, w, dx;
  ConvolutionShape shape;
  TY_FIELDS(Read(dy), Read(w), Write(dx), shape)
};
using ConvolutionBackwardData = ConvolutionBackwardDataOf<Buffer>;

// dw (+)= gradient by w; dbias (+)= gradient by bias, optional; both f32. The gradient by w may be
// rounded to E before it is added.
template <typename T>
struct ConvolutionBackwardWeightsOf {
  static constexpr const char* kName = "convolution_dw";
  T x, dy, dw, dbias;
  ConvolutionShape shape;
  bool accumulate = false;
  TY_FIELDS(Read(x), Read(dy), WriteOrAdd(dw, accumulate), WriteOrAdd(dbias, accumulate), shape,
            accumulate)
};
using ConvolutionBackwardWeights = ConvolutionBackwardWeightsOf<Buffer>;

}  // namespace trainyard::kernels
