#pragma once

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {

// What a job needs.
struct Sizing {
  plan::DataFacts facts;
  v1::PlanSummary summary;
};

// Where facts of the data come from.
struct FactsFrom {
  // The server's user may read no file for the job: what its spec declares has to do.
  bool spec_alone = false;
  std::optional<plan::DataFacts> found;  // by somebody else, who has looked at all files
};

// Finds the facts of the data, plans a step and, where this machine sees the weights that the job
// begins with, checks them against the plan. `spec` must come from ResolveSpec.
//   kInvalidArgument  a file that cannot be read and whose facts are not declared, a model that
//                     does not fit its data, weights to begin with that do not fit the model: names
//                     the field. A folder of weights that is not seen is left to the worker.
//   kUnimplemented    what is not built
// Calls `plans` between reading and planning.
absl::StatusOr<Sizing> SizeJob(
    const v1::JobSpec& spec, const FactsFrom& from = {}, absl::FunctionRef<void()> plans = [] {});

}  // namespace trainyard
