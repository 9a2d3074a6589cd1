#pragma once

// Checks a spec and fills its defaults. Pure.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// The spec with every default filled in, or the first thing that is wrong with it:
//   kInvalidArgument  "spec.training.batch_size: 100 is not a multiple of micro_batch_size 32; try
//   96 or 128" kUnimplemented    "spec.precision.compute: BF16 is not built yet; use FP32"
// Needs no data: what depends on it is checked by BuildPlan. Idempotent.
absl::StatusOr<v1::JobSpec> ResolveSpec(const v1::JobSpec& spec);

// Whether spec.parallel.layout is one that the shards and stages of spec.parallel allow, on however
// many slots.
absl::Status CheckLayout(const v1::Parallel& parallel);

// How the model of a resolved spec wants text and tokens cut.
Windowing WindowingOf(const v1::Model& model);

// Tokens in one sample of a language model; 0 for the other families.
int64_t ContextOf(const v1::Model& model);

// Whether a job runs on GPUs and nowhere else: spec.resources.device is CUDA. One that leaves the
// device open is planned as for a CPU, and runs on a GPU so.
bool OnGpuAlone(const v1::JobSpec& spec);

// "resnet"; "" when there is none.
std::string FamilyOf(const v1::Model& model);

}  // namespace trainyard::plan
