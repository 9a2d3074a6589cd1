#pragma once

// Where the copies of weights in 16 bits are (passes/precision.h): beside their weights from step
// to step, or cast by the step that reads them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/passes/cast_in_step.h"

namespace trainyard::plan {

using CopyOfWeight = absl::flat_hash_map<TensorId, TensorId>;

struct WeightCopies {
  std::vector<TensorId> kept;  // by position in `parameters`; kNone: none, or cast in a step
  std::vector<StepCopy> cast_in_step;
};

// Of `parameters`, the first `dense` of which change with every step. A step casts for itself
// copies of those, where there is but one micro-batch to read them. On a GPU, where each cast is a
// launch, copies of up to 256 MiB are the optimizer's, which has the weights in hand, unless the
// job recomputes activations.
WeightCopies PlaceCopies(const v1::JobSpec& spec, const Graph& graph,
                         const std::vector<TensorId>& parameters, size_t dense,
                         int64_t micro_batches, const CopyOfWeight& copies);

// In plan.evaluate the averages take the places of their parameters; copies of what has none that
// outlive a step are cast when an evaluation begins or, where parameters are sharded, by each of
// its batches before the first op that reads them.
void ReadInEvaluation(const CopyOfWeight& copies, Plan& plan);

}  // namespace trainyard::plan
