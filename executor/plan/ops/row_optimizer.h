#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::plan {

template <>
struct Rules<SgdRows> : BackwardOp, NoScratch {};

template <>
struct Rules<AdamWRows> : BackwardOp {
  static Scratch ScratchOf(const AdamWRows&, const Tensors&) {
    return {.gpu = kernels::cuda::kCorrectionBytes};
  }
};

}  // namespace trainyard::plan
