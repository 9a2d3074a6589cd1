#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::plan {

template <>
struct Rules<EmbeddingForward> : ForwardOp, NoScratch {
  // In fp32, as the residual stream that begins here.
  static void Retype(EmbeddingForward&, Typing&) {}

  static void Differentiate(const EmbeddingForward& f, TensorId dy, Gradient& gradient) {
    if (!gradient.IsTrained(f.tokens)) {
      return gradient.SumRows(dy, f.positions, f.batch, f.time * f.width);
    }
    gradient.ParameterAccumulates(f.tokens);
    if (gradient.IsTrained(f.positions)) gradient.ParameterAccumulates(f.positions);
    gradient.Emit(EmbeddingBackward{.dy = dy,
                                    .ids = f.ids,
                                    .dtokens = gradient.OfParameter(f.tokens),
                                    .dpositions = gradient.OfParameter(f.positions),
                                    .batch = f.batch,
                                    .time = f.time,
                                    .width = f.width,
                                    .vocab = f.vocab});
  }
};

template <>
struct Rules<EmbeddingBackward> : BackwardOp {
  static Scratch ScratchOf(const EmbeddingBackward& o, const Tensors&) {
    return {.gpu = static_cast<int64_t>(kernels::cuda::SortedIdBytes(o.batch * o.time))};
  }
};

}  // namespace trainyard::plan
