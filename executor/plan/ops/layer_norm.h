#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"
#include "kernels/scratch/sums.h"

namespace trainyard::plan {

template <>
struct Rules<LayerNormForward> : ForwardOp, NoScratch {
  static const char* Name(const LayerNormForward& o) {
    if (o.residual != kNone) return o.mean == kNone ? "add_rms_norm" : "add_layer_norm";
    return o.mean == kNone ? "rms_norm" : o.kName;
  }

  static void Retype(LayerNormForward& o, Typing& typing) {
    TY_CHECK(o.residual == kNone, "sums go into norms when their types are known");
    typing.ReadWide(o.x);
    if (!typing.InResidualStream(o.y)) typing.WriteNarrow(o.y);
  }

  static void Differentiate(const LayerNormForward& f, TensorId dy, Gradient& gradient) {
    TY_CHECK(f.residual == kNone, "sums go into norms when the backward pass is there");
    const bool accumulate_params = gradient.ParametersAccumulate(f.gamma, f.beta);
    const auto write = [&](TensorId dx, bool accumulate_dx) {
      gradient.Emit(LayerNormBackward{.dy = dy,
                                      .x = f.x,
                                      .gamma = f.gamma,
                                      .mean = f.mean,
                                      .rstd = f.rstd,
                                      .dx = dx,
                                      .dgamma = gradient.OfParameter(f.gamma),
                                      .dbeta = gradient.OfParameter(f.beta),
                                      .rows = f.rows,
                                      .cols = f.cols,
                                      .accumulate_dx = accumulate_dx,
                                      .accumulate_params = accumulate_params,
                                      .cuts = gradient.token_cuts()});
    };
    if (gradient.Depends(f.x)) {
      gradient.AddInto(f.x, write);
    } else {
      write(kNone, false);
    }
  }

  static InPlace InPlacePairs(const LayerNormForward& o) {
    if (o.residual == kNone) return {};
    return {{o.x, o.sum}, {o.residual, o.sum}, {o.residual, o.y}};
  }
};

template <>
struct Rules<LayerNormBackward> : BackwardOp {
  static const char* Name(const LayerNormBackward& o) {
    return o.mean == kNone ? "rms_norm_backward" : o.kName;
  }
  static Scratch ScratchOf(const LayerNormBackward& o, const Tensors&) {
    const int64_t sums = (o.dgamma != kNone ? 1 : 0) + (o.dbeta != kNone ? 1 : 0);
    return {.cpu = 2 * kernels::scratch::CutRowSums(o.rows, o.cols, o.cuts),
            .gpu = sums * static_cast<int64_t>(kernels::cuda::CutSumBytes(o.rows, o.cols, o.cuts))};
  }
  static InPlace InPlacePairs(const LayerNormBackward& o) {
    return o.accumulate_dx ? InPlace{} : InPlace{{o.dy, o.dx}};
  }
};

}  // namespace trainyard::plan
