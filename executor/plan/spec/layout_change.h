#pragma once

// The part of a spec that a job may change from one attempt to the next, because it changes no bit:
// how ranks share the shards and the layers of its logical ranks (parallel.layout), and what each
// of them keeps (parallel.shard).

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// That of `spec` as text, to be stored beside a spec that stays as it was submitted:
// {"shard":"NONE"}. The default of shard is written down, a 1 is not. Equal layouts give equal
// texts.
std::string LayoutText(const v1::JobSpec& spec);

// Gives `parallel` what `text` says; "": leaves it as it is. kInternal: it cannot be read.
absl::Status SetLayout(const std::string& text, v1::Parallel& parallel);

// The serialized JobSpec `spec` with the layout of `text`. kInternal: one of them cannot be read.
absl::StatusOr<v1::JobSpec> SpecInLayout(const std::string& spec, const std::string& text);

// "tensor 2, pipeline 4 of 2 chunks, shard OPTIMIZER".
std::string DescribeLayout(const v1::JobSpec& spec);

}  // namespace trainyard::plan
