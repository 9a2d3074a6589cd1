#pragma once

#include "absl/status/statusor.h"
#include "trainyard/sizing/sizer.pb.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {

// The answer to a question about a job whose data is known: what would fit, which mesh, other
// layouts. `spec` is that of the question. Looks at no file; runs in the helper, because a plan of
// many layers on many ranks takes memory and time.
absl::StatusOr<sizing::Answer> PlanJob(const v1::JobSpec& spec, const sizing::Question& question);

}  // namespace trainyard
