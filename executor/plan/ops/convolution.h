#pragma once

#include "executor/plan/ops/convolution_scratch.h"
#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

inline double ConvolutionFlops(const ConvolutionShape& s) {
  return 2.0 * static_cast<double>(s.batch * s.out_height() * s.out_width()) *
         static_cast<double>(s.out * (s.in / s.groups)) *
         static_cast<double>(s.kernel_height * s.kernel_width);
}

template <>
struct Rules<ConvolutionForward> : ForwardOp {
  static constexpr bool kReadsNarrow = true;

  static void Retype(ConvolutionForward& o, Typing& typing) {
    typing.ReadNarrow(o.x);
    typing.ReadNarrow(o.w);
    typing.WriteNarrow(o.y);
  }

  static void Differentiate(const ConvolutionForward& f, TensorId dy, Gradient& gradient) {
    if (gradient.IsTrained(f.w)) {
      gradient.Emit(
          ConvolutionBackwardWeights{.x = f.x,
                                     .dy = dy,
                                     .dw = gradient.OfParameter(f.w),
                                     .dbias = gradient.OfParameter(f.bias),
                                     .shape = f.shape,
                                     .accumulate = gradient.ParametersAccumulate(f.w, f.bias)});
    } else {
      const int64_t rows = gradient.graph()[dy].elements() / f.shape.out;
      gradient.SumRows(dy, f.bias, rows, f.shape.out);
    }
    gradient.Overwrite(f.x, [&](TensorId dx) {
      gradient.Emit(ConvolutionBackwardData{.dy = dy, .w = f.w, .dx = dx, .shape = f.shape});
    });
  }

  static double Flops(const ConvolutionForward& o) { return ConvolutionFlops(o.shape); }
  static Scratch ScratchOf(const ConvolutionForward& o, const Tensors& tensors) {
    return {.cpu = CpuConvolutionScratch(o, tensors), .gpu = GpuConvolutionScratch(o.shape)};
  }
};

template <>
struct Rules<ConvolutionBackwardData> : BackwardOp {
  static double Flops(const ConvolutionBackwardData& o) { return ConvolutionFlops(o.shape); }
  static Scratch ScratchOf(const ConvolutionBackwardData& o, const Tensors& tensors) {
    return {.cpu = CpuConvolutionScratch(o, tensors), .gpu = GpuConvolutionScratch(o.shape)};
  }
};

template <>
struct Rules<ConvolutionBackwardWeights> : BackwardOp {
  static double Flops(const ConvolutionBackwardWeights& o) { return ConvolutionFlops(o.shape); }
  static Scratch ScratchOf(const ConvolutionBackwardWeights& o, const Tensors& tensors) {
    return {.cpu = CpuConvolutionScratch(o, tensors),
            .gpu = GpuConvolutionScratch(o.shape, /*bias=*/o.dbias != kNone)};
  }
};

}  // namespace trainyard::plan
