#pragma once

// Puts a plan together: forward and backward pass, the end of a step, evaluation, memory, summary.

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// What BuildPlan makes of a spec for rank `rank`, whatever spec.training.recompute says:
// activations, by the summary's activation_bytes, take at most `activation_bytes` if that can be
// reached, else the least that was.
absl::StatusOr<Plan> Assemble(const v1::JobSpec& spec, const DataFacts& facts,
                              int64_t activation_bytes = kUnbounded, int64_t rank = 0);

// BuildInferencePlan.
absl::StatusOr<Plan> AssembleInference(const v1::JobSpec& spec, const DataFacts& facts,
                                       int64_t batch);

}  // namespace trainyard::plan
