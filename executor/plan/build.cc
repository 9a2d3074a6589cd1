#include "executor/plan/build.h"

#include "executor/plan/assembly.h"
#include "executor/plan/fit.h"
#include "executor/plan/spec/mesh.h"

namespace trainyard::plan {

absl::StatusOr<Plan> BuildPlan(const v1::JobSpec& spec, const DataFacts& facts, int64_t rank) {
  if (spec.training().has_recompute()) return FitToBudget(spec, facts, rank);
  return Assemble(spec, facts, kUnbounded, rank);
}

absl::StatusOr<Plan> BuildLargestPlan(const v1::JobSpec& spec, const DataFacts& facts) {
  return LargestOfStages(MeshOf(spec), spec.training().has_recompute(),
                         [&](int64_t rank) { return BuildPlan(spec, facts, rank); });
}

absl::StatusOr<Plan> BuildInferencePlan(const v1::JobSpec& spec, const DataFacts& facts,
                                        int64_t batch) {
  return AssembleInference(spec, facts, batch);
}

}  // namespace trainyard::plan
