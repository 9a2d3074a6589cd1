#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"
#include "kernels/scratch/sums.h"

namespace trainyard::plan {

template <>
struct Rules<ColumnSum> : BackwardOp {
  static Scratch ScratchOf(const ColumnSum& o, const Tensors&) {
    return {.cpu = kernels::scratch::CutRowSums(o.rows, o.cols, o.cuts),
            .gpu = static_cast<int64_t>(kernels::cuda::CutSumBytes(o.rows, o.cols, o.cuts))};
  }
};

}  // namespace trainyard::plan
