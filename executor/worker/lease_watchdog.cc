#include "executor/worker/lease_watchdog.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "storage/base/status.h"

namespace trainyard::worker {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<LeaseWatchdog>> LeaseWatchdog::Start(
    const run::RunDirectory& directory, Clock& clock) {
  TY_ASSIGN_OR_RETURN(run::LeaseFile lease,
                      run::LeaseFile::Open(directory.lease_path(), /*create=*/false));
  return std::unique_ptr<LeaseWatchdog>(new LeaseWatchdog(directory, std::move(lease), clock));
}

LeaseWatchdog::LeaseWatchdog(run::RunDirectory directory, run::LeaseFile lease, Clock& clock)
    : directory_(std::move(directory)),
      lease_(std::move(lease)),
      clock_(clock),
      thread_([this] { Run(); }) {}

LeaseWatchdog::~LeaseWatchdog() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void LeaseWatchdog::Run() {
  absl::MutexLock lock(&mu_);
  for (;;) {
    // The mapping outlives the file: that the folder was removed shows only when its path is looked
    // up.
    if (clock_.SinceBoot() > lease_.Life() ||
        access(directory_.assignment_path().c_str(), F_OK) != 0) {
      _exit(run::kExitFenced);
    }
    if (mu_.AwaitWithTimeout(absl::Condition(&stop_), kLook)) return;
  }
}

}  // namespace trainyard::worker
