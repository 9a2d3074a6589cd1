#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "clients/cli/session.h"

namespace trainyard::cli {

// Shows the feed of a job until the job ends, and goes on after lost connections. Ctrl-C detaches:
// the job goes on, and the command that watches it again is printed. Returns the exit code of the
// job, or kExitInterrupted. With -o json the output is one JSON object per item.
absl::StatusOr<int> FollowJob(Session& session, const std::string& name, int64_t after_sequence);

}  // namespace trainyard::cli
