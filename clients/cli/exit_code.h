#pragma once

#include "absl/status/status.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard::cli {

// What scripts can rely on; also in --help and README.md.
enum ExitCode {
  kExitOk = 0,
  kExitJobFailed = 1,
  kExitUsage = 2,  // wrong command line, job file or value
  kExitNotFound = 3,
  kExitDenied = 4,        // no token, a wrong one, or not allowed
  kExitUnavailable = 5,   // no server there
  kExitPrecondition = 6,  // not in this state; exists already; changed meanwhile
  kExitTimeout = 7,
  kExitUnimplemented = 8,
  kExitJobCancelled = 9,
  kExitOther = 10,  // a defect, a full disk, anything else
  kExitInterrupted = 130,
};

inline constexpr char kExitCodeHelp[] =
    "Exit codes: 0 done, 1 the job failed, 2 usage, 3 not found, 4 denied, 5 server unavailable,\n"
    "6 precondition, 7 timeout, 8 not built yet, 9 the job was cancelled, 10 other, 130 "
    "interrupted. `submit` of several jobs: that of the first one that was refused.\n"
    "Environment: TRAINYARD_CONTEXT, TRAINYARD_SERVER, TRAINYARD_TOKEN, TRAINYARD_CA_FILE, "
    "TRAINYARD_PROJECT, NO_COLOR.";

ExitCode ExitCodeOf(const absl::Status& status);

// For a job that ended.
ExitCode ExitCodeOf(v1::JobState state);

}  // namespace trainyard::cli
