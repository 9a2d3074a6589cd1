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

// Held to the end of the transaction. kAborted: `epoch` is not the newest leader's.
absl::Status LockLeader(Transaction& transaction, int64_t epoch);

// The job, live or ended, locked until the end of the transaction; without spec. Nothing when it
// was deleted.
std::optional<JobRecord> LockJob(Transaction& transaction, const std::string& uid);
std::optional<AttemptRecord> ReadAttempt(Transaction& transaction, const std::string& uid,
                                         int64_t attempt);

// A job, locked, and its newest attempt, as far as they exist.
struct RanksOfJob {
  std::optional<JobRecord> job;
  std::optional<AttemptRecord> attempt;
};
RanksOfJob LockRanks(Transaction& transaction, const std::string& uid);

// kNotFound when the job does not exist, so that an empty answer is not mistaken for that of a job
// which has nothing.
absl::Status RequireJob(Transaction& transaction, const std::string& uid);

// Items to append to a job's feed: the first gets `first_sequence`, the others the sequences after
// it.
struct NewFeedItems {
  std::string job_uid;
  absl::Time create_time;  // of the job
  int64_t first_sequence = 0;
  std::vector<FeedRecord> items;
};
absl::Status WriteFeeds(Transaction& transaction, const std::vector<NewFeedItems>& feeds);
// How many sequences they take.
int64_t ItemsIn(const std::vector<FeedRecord>& feed);
// Turns the metric heads of a job that has just ended into chunks.
absl::Status CompactIfEnded(Transaction& transaction, const JobRecord& before,
                            const JobRecord& job);
void WriteCheckpoints(Transaction& transaction, const std::vector<CheckpointWritten>& checkpoints);
void WriteFailures(Transaction& transaction, const std::vector<FailureOnNode>& failures);

// Whether the rank is LOST and the lease of the session that reports on it is over.
bool LostWithSession(Transaction& transaction, const AgentIdentity& agent, const RankRecord& rank);

// Whether all of `events` were stored before.
bool Stored(const RankRecord& rank, const std::vector<RankEventRecord>& events);
// Whether what changes of a rank while it runs is the same in both.
bool SameRank(const RankRecord& a, const RankRecord& b);

// Writes the columns that only a change of slots touches, if they changed. Call it while the row is
// in `jobs`: before UpdateJob or EndJob, after ReviveJob.
void WriteSlots(Transaction& transaction, const JobRecord& before, const JobRecord& job);

// `before`: as it was read under the lock. The row of a job that ends moves to ended_jobs, and that
// of a job that is resumed moves back. kAborted when somebody changed it in spite of the lock. Both
// return the sequence that the first new item of the feed has, or would have.
absl::StatusOr<int64_t> WriteJob(Transaction& transaction, const JobRecord& before,
                                 const JobChange& change);
absl::StatusOr<int64_t> WriteAttempt(Transaction& transaction, const JobRecord& job_before,
                                     const AttemptRecord& before, const AttemptChange& change);

}  // namespace trainyard::postgres
