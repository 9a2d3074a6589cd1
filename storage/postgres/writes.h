#pragma once

// What several stores read under a lock, and how they write what records/change.h decided. Inside a
// transaction; throws what libpqxx throws.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/postgres/database.h"
#include "storage/records/change.h"
#include "storage/records/node_health.h"

namespace trainyard::postgres {

absl::Time Now(Transaction& transaction);  // the database's clock

// The job, live or ended, locked until the end of the transaction; without spec. Nothing when it
// was deleted.
std::optional<JobRecord> LockJob(Transaction& transaction, const std::string& uid);
std::optional<AttemptRecord> ReadAttempt(Transaction& transaction, const std::string& uid,
                                         int64_t attempt);

// Items that a job's feed goes on with; the sequences after `first_sequence` follow.
struct NewFeedItems {
  std::string job_uid;
  absl::Time create_time;  // of the job
  int64_t first_sequence = 0;
  std::vector<FeedRecord> items;
};
absl::Status WriteFeeds(Transaction& transaction, const std::vector<NewFeedItems>& feeds);
// How many sequences they take.
int64_t ItemsIn(const std::vector<FeedRecord>& feed);
// Gathers the metrics of a job that has just ended.
absl::Status CompactIfEnded(Transaction& transaction, const JobRecord& before,
                            const JobRecord& job);
void WriteCheckpoints(Transaction& transaction, const std::vector<CheckpointWritten>& checkpoints);
void WriteFailures(Transaction& transaction, const std::vector<FailureOnNode>& failures);

// Whether the rank is lost, and the lease of the agent's session, which reports on it, is over.
bool LostWithSession(Transaction& transaction, const AgentIdentity& agent, const RankRecord& rank);

// Whether all of `events` were stored before.
bool Stored(const RankRecord& rank, const std::vector<RankEventRecord>& events);
// Whether what is stored of a running rank is the same.
bool SameRank(const RankRecord& a, const RankRecord& b);

// `before`: as it was read under the lock. A job that ends moves to the history, and one that is
// resumed comes back from there. kAborted when somebody changed it in spite of that. Both return
// the sequence that the first new item of the feed has, or would have.
absl::StatusOr<int64_t> WriteJob(Transaction& transaction, const JobRecord& before,
                                 const JobChange& change);
absl::StatusOr<int64_t> WriteAttempt(Transaction& transaction, const JobRecord& job_before,
                                     const AttemptRecord& before, const AttemptChange& change);

}  // namespace trainyard::postgres
