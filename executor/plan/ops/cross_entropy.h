#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"
#include "kernels/scratch/sums.h"

namespace trainyard::plan {

template <>
struct Rules<CrossEntropy> : BackwardOp, NoScratch {
  static InPlace InPlacePairs(const CrossEntropy& o) {
    return o.dlogits != kNone ? InPlace{{o.logits, o.dlogits}} : InPlace{};
  }
};

template <>
struct Rules<CountTargets> : BackwardOp {
  static Scratch ScratchOf(const CountTargets& o, const Tensors&) {
    return {.gpu = static_cast<int64_t>(kernels::cuda::FixedSumBytes(o.n))};
  }
};

template <>
struct Rules<Sum> : BackwardOp {
  static Scratch ScratchOf(const Sum& o, const Tensors&) {
    return {.cpu = kernels::scratch::Reduction(o.n),
            .gpu = static_cast<int64_t>(kernels::cuda::FixedSumBytes(o.n))};
  }
};

}  // namespace trainyard::plan
