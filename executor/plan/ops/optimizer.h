#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"
#include "kernels/scratch/sums.h"

namespace trainyard::plan {

template <>
struct Rules<SquaredNorm> : BackwardOp {
  static Scratch ScratchOf(const SquaredNorm& o, const Tensors&) {
    return {.cpu = kernels::scratch::Reduction(o.n),
            .gpu = static_cast<int64_t>(kernels::cuda::FixedSumBytes(o.n))};
  }
};

template <>
struct Rules<ClipScale> : BackwardOp, NoScratch {};

template <>
struct Rules<SgdStep> : BackwardOp, NoScratch {};

template <>
struct Rules<AdamWStep> : BackwardOp {
  static Scratch ScratchOf(const AdamWStep&, const Tensors&) {
    return {.gpu = kernels::cuda::kCorrectionBytes};
  }
};

template <>
struct Rules<EmaStep> : BackwardOp, NoScratch {};

}  // namespace trainyard::plan
