#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::facts {

// Reads the facts of the data or, where the files cannot be seen, takes what the spec declares.
// `spec` must come from ResolveSpec. Errors name the field and are kInvalidArgument or
// kUnimplemented; `unseen` is set if files that cannot be seen are the reason, which another
// machine may see. `who` looks, "the server" say.
absl::StatusOr<plan::DataFacts> Look(const v1::JobSpec& spec, absl::string_view who, bool& unseen);

// The same from the spec alone; `why` is the error if that does not declare enough.
absl::StatusOr<plan::DataFacts> Declared(const v1::JobSpec& spec, absl::string_view why);

// Whether the weights that the job begins with fit its plan, if this machine sees them; a worker
// looks again.
absl::Status CheckStart(const v1::JobSpec& spec, const plan::Plan& plan);

}  // namespace trainyard::facts
