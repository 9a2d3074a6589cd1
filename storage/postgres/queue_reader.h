#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/postgres/database.h"
#include "storage/scheduler_store.h"

namespace trainyard::postgres {

// The jobs that wait, as of the last snapshot that was read: the next one brings only what changed
// since. Every job's row names the transaction that changed it last, so all that an earlier
// snapshot did not see is at or past the oldest transaction that was under way then; what is read
// twice changes nothing.
//
// A job that was cancelled and deleted between two snapshots leaves no row behind, and after a
// fail-over transactions may be counted anew: the whole queue is compared again every ten seconds.
// Until then such a job may be decided on, and Apply leaves it out, which is a reason to compare at
// once.
//
// Thread-safe; one snapshot is read after the other.
class QueueReader {
 public:
  // Within a transaction of Access::kSnapshot, as its first statements.
  // kUnavailable: whoever reads at the moment does not end.
  absl::StatusOr<std::shared_ptr<const WaitingJobs>> Read(Transaction& transaction);

  // The next one compares everything: a decision on what was read did not hold.
  void Doubt();

 private:
  struct Changes;
  Changes ReadChanged(Transaction& transaction, const std::string& since)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Changes CompareAll(Transaction& transaction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fold(Changes changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex turn_mu_;
  bool reading_ ABSL_GUARDED_BY(turn_mu_) = false;
  absl::Mutex mu_;  // held while a snapshot is read, in turn: the next one is then a later one
  std::unordered_map<std::string, std::shared_ptr<const JobRecord>> by_uid_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const WaitingJobs> in_order_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<WaitingJobs>();
  std::string since_ ABSL_GUARDED_BY(mu_);        // xid8; empty: nothing was read yet
  absl::Duration compared_ ABSL_GUARDED_BY(mu_);  // on Clock::SinceBoot
};

}  // namespace trainyard::postgres
