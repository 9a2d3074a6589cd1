#pragma once

// What several stores read under a lock, and how they write what records/change.h decided. Inside a
// transaction; throws what libpqxx throws.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "storage/postgres/database.h"
#include "storage/records/change.h"

namespace trainyard::postgres {

absl::Time Now(Transaction& transaction);  // the database's clock

// The job, locked until the end of the transaction; without spec. Nothing when it was deleted.
std::optional<JobRecord> LockJob(Transaction& transaction, const std::string& uid);
std::optional<AttemptRecord> ReadAttempt(Transaction& transaction, const std::string& uid,
                                         int64_t attempt);

// `before`: as it was read under the lock. kAborted when somebody changed it in spite of that.
absl::Status WriteJob(Transaction& transaction, const JobRecord& before, const JobChange& change);
absl::Status WriteAttempt(Transaction& transaction, const JobRecord& job_before,
                          const AttemptRecord& before, const AttemptChange& change);

}  // namespace trainyard::postgres
