#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/postgres/database.h"
#include "storage/scheduler_fold.h"

namespace trainyard::postgres {

// SchedulerStore::ReadChanges, within a transaction of Access::kSnapshot. Every row that the
// scheduler looks at names the transaction that changed it last, and a position is the snapshot
// that was read: what is new is exactly what that snapshot did not see, however long other
// transactions stay open.
//
// After a crash PostgreSQL may give the number of a transaction that had not committed to another
// one, and after a fail-over to a stand-by numbers may differ, too. So everything is read if a
// connection was lost since the earlier reading (Database::losses), or if the timeline is another.
absl::StatusOr<SnapshotChanges> ReadChangesIn(Transaction& transaction, int64_t losses,
                                              const ChangePosition& since, bool leases);

// The jobs of ReadSnapshot: from one reading to the next, only changes are read. Thread-safe; one
// snapshot is read after the other.
class SnapshotReader {
 public:
  // Within a transaction of Access::kSnapshot. Reads everything but nodes. kUnavailable: a reading
  // on another thread does not end.
  absl::StatusOr<SchedulerSnapshot> ReadJobs(Transaction& transaction, int64_t losses);

 private:
  absl::Mutex turn_mu_;
  bool reading_ ABSL_GUARDED_BY(turn_mu_) = false;
  absl::Mutex mu_;  // held while a snapshot is read: one after the other
  SchedulerFold fold_ ABSL_GUARDED_BY(mu_);
  absl::Duration read_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();  // on Clock::SinceBoot
};

}  // namespace trainyard::postgres
