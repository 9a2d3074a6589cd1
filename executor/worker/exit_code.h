#pragma once

#include <string>

#include "absl/status/status.h"
#include "trainyard/v1/run.pb.h"

namespace trainyard::worker {

// The exit code for a failure of the engine (run_directory.h lists them).
int ExitCodeOf(const absl::Status& status);

// The same as an event.
v1::Failure FailureOf(const absl::Status& status);

// One line per exit code, for --help.
std::string ExitCodesText();

}  // namespace trainyard::worker
