#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/records/feed.h"

namespace trainyard {

// The checkpoints in the folder of one job (a URI, file:///…), by step: those of which every file
// is there, with the size that the manifest names, and which are of the course that the run was on
// last (training.on_non_finite). Their contents are not read: whoever loads one compares the
// digests. A folder that is not there has none; what cannot be read for another reason is an error.
absl::StatusOr<std::vector<CheckpointRecord>> LookAtCheckpoints(const std::string& folder);

// The folders of jobs under the root of all checkpoints, ROOT/PROJECT/JOB, as URIs.
absl::StatusOr<std::vector<std::string>> ListJobFolders(const std::string& root);

}  // namespace trainyard
