#pragma once

// Plans that need no more memory than there is.

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"
#include "executor/plan/spec/mesh.h"

namespace trainyard::plan {

// Of the plans that `build` makes, one for a rank of each stage that may differ and, if ranks are
// `recomputing`, for each rank of such a stage that may, the one that needs most memory; it says
// what the rank sends that sends most. Stages that are alike fill a budget of activations more or
// less: where they recompute, another one may need a little more of it.
absl::StatusOr<Plan> LargestOfStages(const Mesh& mesh, bool recomputing,
                                     absl::FunctionRef<absl::StatusOr<Plan>(int64_t rank)> build);

// The plan that spec.training.recompute asks for; kInvalidArgument when its budget cannot be held,
// with the least that can.
absl::StatusOr<Plan> FitToBudget(const v1::JobSpec& spec, const DataFacts& facts, int64_t rank);

// For a job that needs more than `slot_bytes` per slot: what would fit, found by planning it. "set
// training.recompute.slot_bytes to 1000000, or training.micro_batch_size to 8".
std::string WhatFits(const v1::JobSpec& spec, const DataFacts& facts, int64_t slot_bytes);

}  // namespace trainyard::plan
