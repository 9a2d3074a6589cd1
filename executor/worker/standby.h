#pragma once

#include "absl/status/statusor.h"
#include "executor/worker/rank.h"

namespace trainyard::worker {

// A warm worker: loads and touches what the first step needs, then waits for one line on stdin,
//   {"run_dir": "/state/ranks/…", "device": "cpu", "threads": 2, "kept_state": "",
//   "kept_state_room": 0}
// (the last two are not in that of an older agent) and runs that rank. Returns its exit code; 0
// when stdin ends before a line came. With `open_device` the device of `options` is opened
// beforehand, which the log says ("waiting, warm, on …"; tests/gpu waits for it), and used if the
// line asks for the same device and threads.
int RunStandby(const RankOptions& options, bool open_device);

// What the line says; kInvalidArgument names what is missing.
absl::StatusOr<RankOptions> ParseStandbyLine(const std::string& line);

}  // namespace trainyard::worker
