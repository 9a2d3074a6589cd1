#pragma once

#include <string>

#include "storage/postgres/database.h"
#include "storage/postgres/queue_reader.h"
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
  Database& database_;
  QueueReader queue_;
};

}  // namespace trainyard::postgres
