#pragma once

#include <optional>
#include <string>

#include "storage/postgres/change_reader.h"
#include "storage/postgres/database.h"
#include "storage/scheduler_store.h"

namespace trainyard::postgres {

class PostgresSchedulerStore : public SchedulerStore {
 public:
  // `leases`: separate connections for leadership.
  PostgresSchedulerStore(Database& database, Database& leases)
      : database_(database), leases_(leases) {}

  absl::StatusOr<LeaderRecord> ReadLeader() override;
  absl::StatusOr<LeaderLease> Lead(const std::string& holder, absl::Duration lease,
                                   std::optional<int64_t> stale_beat) override;
  absl::Status StandDown(const std::string& holder) override;
  absl::StatusOr<SchedulerSnapshot> ReadSnapshot() override;
  absl::StatusOr<SnapshotChanges> ReadChanges(const ChangePosition& since, bool leases) override;
  absl::StatusOr<int> Apply(int64_t leader_epoch, const Decisions& decisions) override;

 private:
  Database& database_;
  Database& leases_;
  SnapshotReader reader_;
};

}  // namespace trainyard::postgres
