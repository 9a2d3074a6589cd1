#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"
#include "kernels/scratch/sums.h"

namespace trainyard::plan {

template <>
struct Rules<LambStep> : BackwardOp {
  static Scratch ScratchOf(const LambStep& o, const Tensors&) {
    return {.cpu = o.adapt ? 2 * kernels::scratch::Reduction(o.n) : 0,
            .gpu = static_cast<int64_t>(kernels::cuda::LambBytes(o.n, o.adapt))};
  }
};

}  // namespace trainyard::plan
