#pragma once

// Resource names (AIP-122) and what else clients send by hand. Pure. Every error is
// kInvalidArgument and begins with the field.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/job_store.h"

namespace trainyard {

// "projects/{project}"; with `all`, "projects/-" as well, which gives "-".
absl::StatusOr<std::string> ParseProjectName(absl::string_view field, absl::string_view name,
                                             bool all);

// "projects/{project}/jobs/{job}"
absl::StatusOr<JobName> ParseJobName(absl::string_view field, absl::string_view name);

// "projects/{project}/jobs/{job}/checkpoints/{step | latest | best}"; no step means latest or best.
struct CheckpointName {
  JobName job;
  std::optional<int64_t> step;
  bool best = false;
};
absl::StatusOr<CheckpointName> ParseCheckpointName(absl::string_view field, absl::string_view name);

// "nodes/{node}"
absl::StatusOr<std::string> ParseNodeName(absl::string_view field, absl::string_view name);

// "joinTokens/{id}"
absl::StatusOr<std::string> ParseJoinTokenName(absl::string_view field, absl::string_view name);

// "tokens/{id}"
absl::StatusOr<std::string> ParseTokenName(absl::string_view field, absl::string_view name);

// 0 means `normal`; more than `most` is taken as `most` (AIP-158).
absl::StatusOr<int> CheckPageSize(int page_size, int normal, int most);

// At most 64 printable characters, or empty.
absl::Status CheckRequestId(absl::string_view request_id);

// The job id for a submission with a request id but without a job id: a replay gets the same one.
std::string JobIdForRequest(absl::string_view hint, absl::string_view project,
                            absl::string_view request_id);

// VersionOfEtag: the version that `etag` names. The store compares it, because only there is it
// known whether a call is a replay, which may name an older version. 0, any version, when it is
// empty; kAborted when it is of another job.
std::string EtagOf(const JobRecord& job);
absl::StatusOr<int64_t> VersionOfEtag(absl::string_view etag, const JobRecord& job);

}  // namespace trainyard
