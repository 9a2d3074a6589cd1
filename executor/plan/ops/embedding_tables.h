#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"
#include "kernels/scratch/merge_rows.h"

namespace trainyard::plan {

template <>
struct Rules<EmbeddingTablesForward> : ForwardOp, NoScratch {
  static void Retype(EmbeddingTablesForward&, Typing&) {}  // in fp32

  static void Differentiate(const EmbeddingTablesForward& f, TensorId dy, Gradient& gradient) {
    if (const RowGradient* const kept = gradient.OfRows(f.tables.front()); kept != nullptr) {
      gradient.Emit(KeepRows{.dy = dy,
                             .ids = f.ids,
                             .kept_dy = kept->grad,
                             .kept_ids = kept->ids,
                             .state = kept->state,
                             .samples = gradient.graph()[kept->ids].dims[0],
                             .batch = f.batch,
                             .count = static_cast<int64_t>(f.tables.size()),
                             .width = f.width});
      return;
    }
    EmbeddingTablesBackward backward{.dy = dy, .ids = f.ids, .batch = f.batch, .width = f.width};
    for (const TensorId table : f.tables) {
      gradient.ParameterAccumulates(table);
      backward.gradients.push_back(gradient.OfParameter(table));
    }
    gradient.Emit(std::move(backward));
  }
};

template <>
struct Rules<EmbeddingTablesBackward> : BackwardOp {
  static Scratch ScratchOf(const EmbeddingTablesBackward& o, const Tensors&) {
    return {.gpu =
                static_cast<int64_t>(o.gradients.size() * kernels::cuda::SortedIdBytes(o.batch))};
  }
};

template <>
struct Rules<KeepRows> : BackwardOp, NoScratch {};

template <>
struct Rules<MergeRows> : BackwardOp {
  static Scratch ScratchOf(const MergeRows& o, const Tensors&) {
    return {.cpu = kernels::scratch::MergeRows(o.samples, kThreads),
            .gpu = o.count * static_cast<int64_t>(kernels::cuda::SortedIdBytes(o.samples))};
  }
};

}  // namespace trainyard::plan
