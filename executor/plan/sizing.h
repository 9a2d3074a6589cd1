#pragma once

// What a slot must have for a job, however many ranks it comes to run on. Pure.

#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"

namespace trainyard::plan {

// Of the numbers of ranks that `spec`, which must come from ResolveSpec, may have, the plan of the
// one with which a rank needs most memory; its summary counts links to the most ranks that there
// may be.
absl::StatusOr<Plan> PlanForAnyRanks(const v1::JobSpec& spec, const DataFacts& facts);

}  // namespace trainyard::plan
