#pragma once

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

// Who may not have files read for it has to declare what they hold.
enum class FactsFrom { kFilesAndSpec, kSpecAlone };

// Reads the facts of the data (or takes what the spec declares), plans a step and, where this
// machine sees the weights that the job begins with, checks them against the plan. `spec` must come
// from ResolveSpec.
//   kInvalidArgument  a file that cannot be read and whose facts are not declared, a model that
//                     does not fit its data, weights to begin with that do not fit the model: names
//                     the field. A folder of weights that is not seen is left to the worker.
//   kUnimplemented    what is not built
// From the spec alone, no file is looked at. Calls `plans` between reading and planning.
absl::StatusOr<Sizing> SizeJob(
    const v1::JobSpec& spec, FactsFrom from = FactsFrom::kFilesAndSpec,
    absl::FunctionRef<void()> plans = [] {});

}  // namespace trainyard
