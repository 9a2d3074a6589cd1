#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/postgres/database.h"
#include "storage/scheduler_store.h"

namespace trainyard::postgres {

class PostgresSchedulerStore : public SchedulerStore {
 public:
  explicit PostgresSchedulerStore(Database& database) : database_(database) {}

  absl::StatusOr<LeaderLease> Lead(const std::string& holder, absl::Duration lease) override;
  absl::Status StandDown(const std::string& holder) override;
  absl::StatusOr<SchedulerSnapshot> ReadSnapshot() override;
  absl::StatusOr<int> Apply(int64_t leader_epoch, const Decisions& decisions) override;

 private:
  using QueuedJobs = std::vector<JobRecord>;  // by uid

  // All queued jobs. Of those that were read before and have not changed since, only that much is
  // read: most of a long queue stays as it is from one snapshot to the next.
  std::shared_ptr<const QueuedJobs> ReadQueue(Transaction& transaction);

  Database& database_;
  absl::Mutex mu_;
  // As it was last read; shared with whoever reads the next one.
  std::shared_ptr<const QueuedJobs> queue_ ABSL_GUARDED_BY(mu_) = std::make_shared<QueuedJobs>();
};

}  // namespace trainyard::postgres
