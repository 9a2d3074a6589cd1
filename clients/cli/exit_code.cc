#include "clients/cli/exit_code.h"

namespace trainyard::cli {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitDenied;
    case absl::StatusCode::kUnavailable:
      return kExitUnavailable;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return kExitPrecondition;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimeout;
    case absl::StatusCode::kUnimplemented:
      return kExitUnimplemented;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitOther;
  }
}

ExitCode ExitCodeOf(v1::JobState state) {
  switch (state) {
    case v1::SUCCEEDED:
      return kExitOk;
    case v1::CANCELLED:
      return kExitJobCancelled;
    default:
      return kExitJobFailed;
  }
}

}  // namespace trainyard::cli
