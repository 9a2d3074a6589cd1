#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/sizes.h"

namespace trainyard::plan {

template <>
struct Rules<SquaredNormLeaves> : BackwardOp, NoScratch {};

template <>
struct Rules<AddLeaves> : BackwardOp {
  static Scratch ScratchOf(const AddLeaves& o, const Tensors&) {
    return {.cpu = kernels::scratch::kDouble * o.count,
            .gpu = 2 * kernels::scratch::kDouble * o.count};
  }
};

}  // namespace trainyard::plan
