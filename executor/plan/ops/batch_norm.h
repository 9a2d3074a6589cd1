#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/batch_norm.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::plan {

template <typename O>
void RetypeBatchNorm(O& o, Typing& typing) {
  typing.ReadNarrow(o.x);
  typing.ReadNarrow(o.residual);
  typing.WriteNarrow(o.y);
}

template <>
struct Rules<BatchNormForward> : ForwardOp {
  static constexpr bool kReadsNarrow = true;

  static void Retype(BatchNormForward& o, Typing& typing) { RetypeBatchNorm(o, typing); }

  static void Differentiate(const BatchNormForward& f, TensorId dy, Gradient& gradient) {
    const bool accumulate = gradient.ParametersAccumulate(f.gamma, f.beta);
    const bool branches = f.residual != kNone && gradient.Depends(f.residual);
    const TensorId dx = gradient.Depends(f.x) ? gradient.NewLike(f.x) : kNone;
    // Without relu the gradient reaches the other branch as it is.
    const TensorId dresidual = branches && f.relu ? gradient.NewLike(f.residual) : kNone;
    const BatchNormBackward backward{.dy = dy,
                                     .x = f.x,
                                     .y = f.relu ? f.y : kNone,
                                     .gamma = f.gamma,
                                     .mean = f.mean,
                                     .rstd = f.rstd,
                                     .dx = dx,
                                     .dresidual = dresidual,
                                     .dgamma = gradient.OfParameter(f.gamma),
                                     .dbeta = gradient.OfParameter(f.beta),
                                     .rows = f.rows,
                                     .cols = f.cols,
                                     .accumulate_params = accumulate};
    const bool only_passes_on =
        dx == kNone && dresidual == kNone && backward.dgamma == kNone && backward.dbeta == kNone;
    if (!only_passes_on) gradient.Emit(backward);
    gradient.Accumulate(f.x, dx);
    if (branches) gradient.Accumulate(f.residual, f.relu ? dresidual : dy);
  }

  // It reads the moments that the first time left, and moves no running statistics.
  static BatchNormForward Recomputed(BatchNormForward o) {
    o.again = true;
    o.running_mean = o.running_var = kNone;
    return o;
  }

  static Scratch ScratchOf(const BatchNormForward& o, const Tensors&) {
    return {.cpu = kernels::scratch::BatchNormForward(o.rows, o.cols),
            .gpu = static_cast<int64_t>(kernels::cuda::BatchNormForwardBytes(o.rows, o.cols))};
  }
  static InPlace InPlacePairs(const BatchNormForward& o) { return {{o.residual, o.y}}; }
};

template <>
struct Rules<BatchNormInference> : ForwardOp {
  static constexpr bool kReadsNarrow = true;

  static void Retype(BatchNormInference& o, Typing& typing) { RetypeBatchNorm(o, typing); }

  static void Differentiate(const BatchNormInference&, TensorId, Gradient&) {
    TY_CHECK(false, "batch norm of running statistics has no gradient");
  }

  static Scratch ScratchOf(const BatchNormInference& o, const Tensors&) {
    return {.cpu = kernels::scratch::BatchNormInference(o.cols)};
  }
  static InPlace InPlacePairs(const BatchNormInference& o) {
    return {{o.x, o.y}, {o.residual, o.y}};
  }
};

template <>
struct Rules<BatchNormBackward> : BackwardOp {
  static Scratch ScratchOf(const BatchNormBackward& o, const Tensors&) {
    return {.cpu = kernels::scratch::BatchNormBackward(o.rows, o.cols),
            .gpu = static_cast<int64_t>(kernels::cuda::BatchNormBackwardBytes(o.rows, o.cols))};
  }
  static InPlace InPlacePairs(const BatchNormBackward& o) {
    return {{o.x, o.dx}, {o.dy, o.dresidual}};
  }
};

}  // namespace trainyard::plan
