#pragma once

// What a job is cut into that leaves it to the service (Parallel.auto). Pure.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

struct ChosenMesh {
  bool fits = false;         // whether anything does; if not, only `why` and `ended_early` are set
  v1::JobSpec spec;          // with what was chosen, as ResolveSpec gives it
  v1::PlanSummary summary;   // of PlanForAnyRanks
  bool ended_early = false;  // `stop` kept more meshes from being looked at
  // What was chosen and what came before it: "shard GRADIENTS needs 5.0 GiB a slot, of 6.0 GiB; the
  // job as it is needs 8.0 GiB a slot". If nothing fits what needs least, and what was refused.
  std::string why;
};

// The first mesh for `spec`, which must come from ResolveSpec, that needs at most `slot_bytes` a
// slot, in the order that Parallel.auto tells. What `spec` says other than its defaults stays. Ends
// early once `stop` says so.
absl::StatusOr<ChosenMesh> ChooseMesh(const v1::JobSpec& spec, const DataFacts& facts,
                                      int64_t slot_bytes, const std::function<bool()>& stop);

}  // namespace trainyard::plan
