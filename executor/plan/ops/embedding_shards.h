#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::plan {

template <>
struct Rules<EmbeddingShardsForward> : ForwardOp, NoScratch {
  // In fp32, as the residual stream that begins here.
  static void Retype(EmbeddingShardsForward&, Typing&) {}

  static void Differentiate(const EmbeddingShardsForward& f, TensorId dy, Gradient& gradient) {
    if (!gradient.IsTrained(f.tables.front())) return;
    EmbeddingShardsBackward backward{.dy = dy,
                                     .ids = f.ids,
                                     .places = f.places,
                                     .width = f.width,
                                     .first = f.first,
                                     .vocab = f.vocab};
    for (const TensorId table : f.tables) {
      gradient.ParameterAccumulates(table);
      backward.gradients.push_back(gradient.OfParameter(table));
    }
    gradient.Emit(std::move(backward));
  }
};

template <>
struct Rules<EmbeddingShardsBackward> : BackwardOp {
  static Scratch ScratchOf(const EmbeddingShardsBackward& o, const Tensors&) {
    return {.gpu = static_cast<int64_t>(kernels::cuda::SortedIdBytes(o.places))};
  }
};

}  // namespace trainyard::plan
