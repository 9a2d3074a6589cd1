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

  const char* Problem() const {
    if (batch < 1 || height < 1 || width < 1 || in < 1 || out < 1) return "the images are empty";
    if (kernel_height < 1 || kernel_width < 1 || stride < 1) return "the kernel or stride is empty";
    if (groups < 1 || in % groups != 0 || out % groups != 0)
      return "groups do not divide in and out";
    const bool fits = kernel_height <= height + 2 * pad && kernel_width <= width + 2 * pad;
    return pad >= 0 && fits ? nullptr : "the kernel does not fit into the padded image";
  }
};

// y may be rounded to E before the bias is added as well as after.
template <typename T>
struct ConvolutionForwardOf {
  static constexpr const char* kName = "convolution";
  T x, w, bias, y;
  ConvolutionShape shape;

  const char* Problem() const { return shape.Problem(); }
  TY_FIELDS(Read(x, E), Read(w, E), Read(bias, Optional()), Write(y, E), shape)
};
using ConvolutionForward = ConvolutionForwardOf<Buffer>;

// dy: as y; dx: as x, overwritten.
template <typename T>
struct ConvolutionBackwardDataOf {
  static constexpr const char* kName = "convolution_dx";
  T dy, w, dx;
  ConvolutionShape shape;

  const char* Problem() const { return shape.Problem(); }
  TY_FIELDS(Read(dy, E), Read(w, E), Write(dx, E), shape)
};
using ConvolutionBackwardData = ConvolutionBackwardDataOf<Buffer>;

// dw (+)= gradient by w; dbias (+)= gradient by bias, optional; both f32. The gradient by w may be
// rounded to E before it is added.
template <typename T>
struct ConvolutionBackwardWeightsOf {
  static constexpr const char* kName = "convolution_dw";
  T x, dy, dw, dbias;
  ConvolutionShape shape;

  const char* Problem() const { return shape.Problem(); }
  bool accumulate = false;
  TY_FIELDS(Read(x, E), Read(dy, E), WriteOrAdd(dw, accumulate),
            WriteOrAdd(dbias, accumulate, Optional()), shape, accumulate)
};
using ConvolutionBackwardWeights = ConvolutionBackwardWeightsOf<Buffer>;

}  // namespace trainyard::kernels
