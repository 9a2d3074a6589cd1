#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard {

// What a command printed, at most kMostOutput of each, and how it ended.
struct CommandResult {
  int exit_code = 0;  // 128 + the signal that ended it
  std::string out, err;
};
inline constexpr size_t kMostOutput = 64 << 20;

// Runs a program, found along PATH, with nothing on its standard input and only these variables of
// our environment: PATH, HOME, and what names a configuration of Slurm's. kUnavailable: it could
// not be started. kDeadlineExceeded: it was killed after `limit`, with all that it started.
absl::StatusOr<CommandResult> RunCommand(const std::vector<std::string>& arguments,
                                         absl::Duration limit);

}  // namespace trainyard
