#pragma once

// From a spec to the compiled training step (graph/plan.h). Pure, no device.

#include <cstdint>

#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// `spec` must come from ResolveSpec. kInvalidArgument names the field that does not fit the data,
// or the budget of spec.training.recompute that cannot be held, with the least that can.
//
// The arena must be zero before the first step: the padding between parameters, gradients and
// optimizer state is never written but is read by the optimizer and the norm, whose results on
// zeros are zeros. (Of gradients that are sharded it is cleared in their sums:
// Plan::clear_padding.)
//
// The plan is that of rank `rank` of spec.resources.max_slots. The summaries of all are equal (what
// one rank needs to step a tensor of LAMB alone is less than what products of it take on every
// rank), but where ranks share a logical rank: of those of a stage the first holds most.
absl::StatusOr<Plan> BuildPlan(const v1::JobSpec& spec, const DataFacts& facts, int64_t rank = 0);

// The plan of the rank that needs most memory.
absl::StatusOr<Plan> BuildLargestPlan(const v1::JobSpec& spec, const DataFacts& facts);

// Only what evaluates `batch` samples: parameters, buffers, activations and `evaluate`. No
// gradients, no optimizer; begin, micro and end are empty. For sampling from a checkpoint, whose
// weights are merged: no adapters, whatever spec.fine_tune says.
absl::StatusOr<Plan> BuildInferencePlan(const v1::JobSpec& spec, const DataFacts& facts,
                                        int64_t batch);

}  // namespace trainyard::plan
