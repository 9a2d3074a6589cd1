#pragma once

#include <string>
#include <vector>

#include "storage/postgres/database.h"
#include "storage/retention_store.h"

namespace trainyard::postgres {

// The partitions of an old month are removed in one short transaction, which waits for no lock for
// long, because all others would wait behind it. The partition of ended_jobs is only detached: it
// says whose rows are still to be removed from the tables that have no partitions. That is done in
// pieces afterwards.
class PostgresRetentionStore : public RetentionStore {
 public:
  explicit PostgresRetentionStore(Database& database) : database_(database) {}

  absl::StatusOr<Retention> GetRetention() override;
  absl::Status SetRetention(const Retention& retention) override;
  absl::Status MakeMonthlyPartitions() override;
  absl::StatusOr<Aged> Age() override;

 private:
  Database& database_;
};

}  // namespace trainyard::postgres
