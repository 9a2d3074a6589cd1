#include "storage/postgres/writes.h"

#include <map>
#include <pqxx/pqxx>
#include <utility>

#include "storage/base/status.h"
#include "storage/postgres/json_columns.h"
#include "storage/postgres/metric_writes.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"

namespace trainyard::postgres {
namespace {

// The time limit of each statement of the leader, whose locks must not keep others waiting.
constexpr absl::Duration kLeaderStatementLimit = absl::Seconds(2);
constexpr int kMostMoves = 8;  // of a job between live and ended while its lock is waited for

}  // namespace

int64_t ItemsIn(const std::vector<FeedRecord>& feed) {
  int64_t items = 0;
  for (const FeedRecord& item : feed) items += SpanOf(item);
  return items;
}

absl::Status CompactIfEnded(Transaction& transaction, const JobRecord& before,
                            const JobRecord& job) {
  const bool ended = IsTerminal(job.state) && !IsTerminal(before.state);
  // A job that took one step at most has too few points for a chunk: no need to ask.
  if (!ended || job.step <= 1) return absl::OkStatus();
  return CompactHeads(transaction, job.uid);
}

absl::Status WriteFeeds(Transaction& transaction, const std::vector<NewFeedItems>& feeds) {
  std::vector<std::string> uids, kinds, bodies;
  std::vector<int64_t> sequences, created, times, attempts;
  std::map<std::string, MetricBlock> metrics;  // by job
  for (const NewFeedItems& feed : feeds) {
    int64_t sequence = feed.first_sequence;
    MetricBlock& points = metrics[feed.job_uid];
    std::vector<FeedRecord> others;
    for (const FeedRecord& item : feed.items) {
      if (const auto* metric = std::get_if<MetricRecord>(&item.what)) {
        points.attempt = item.attempt;  // all of one attempt: the newest
        points.Add(sequence++, item.time, *metric);
        continue;
      }
      if (const auto* run = std::get_if<MetricRun>(&item.what)) {
        points.attempt = item.attempt;
        points.Add(sequence, *run);
        sequence += SpanOf(item);
        continue;
      }
      others.emplace_back(item).sequence = sequence++;
    }
    for (FeedRow& row : FeedRowsOf(others)) {
      uids.push_back(feed.job_uid);
      sequences.push_back(row.sequence);
      created.push_back(absl::ToUnixMicros(feed.create_time));
      times.push_back(absl::ToUnixMicros(row.time));
      attempts.push_back(row.attempt);
      kinds.push_back(std::move(row.kind));
      bodies.push_back(std::move(row.body));
    }
  }
  if (!sequences.empty()) {
    transaction.Run(kInsertFeed, Params(uids, sequences, created, times, attempts, kinds, bodies));
  }
  return WriteMetrics(transaction, metrics);
}

void WriteCheckpoints(Transaction& transaction, const std::vector<CheckpointWritten>& checkpoints) {
  for (const CheckpointWritten& written : checkpoints) {
    const CheckpointRecord& c = written.checkpoint;
    transaction.Run(kUpsertCheckpoint,
                    Params(c.job_uid, c.step, c.attempt, c.uri, c.bytes, c.manifest_sha256,
                           c.weights_sha256, c.final, c.create_time, MapJson(c.metrics)));
    if (!written.removed_uris.empty()) {
      transaction.Run(kRemoveCheckpoints, Params(c.job_uid, written.removed_uris));
    }
  }
}

void WriteFailures(Transaction& transaction, const std::vector<FailureOnNode>& failures) {
  for (const FailureOnNode& one : failures) {
    const NodeFailure& failure = one.failure;
    transaction.Run(kInsertNodeFailure,
                    Params(one.node, failure.job_uid, failure.attempt, failure.job_id,
                           failure.category, failure.time, failure.charged));
    transaction.Run(kForgetNodeFailures,
                    Params(one.node, kFailuresKept, static_cast<int64_t>(kMostFailuresKept)));
  }
}

bool LostWithSession(Transaction& transaction, const AgentIdentity& agent, const RankRecord& rank) {
  if (rank.state != RankState::kLost || agent.session.empty()) return false;
  return !transaction.Run(kNowInSession, Params(agent.node, agent.session))[0]["holds"].as<bool>();
}

bool Stored(const RankRecord& rank, const std::vector<RankEventRecord>& events) {
  return !events.empty() && LastSequenceOf(events.back()) <= rank.acked_sequence;
}

bool SameRank(const RankRecord& a, const RankRecord& b) {
  return a.state == b.state && a.outcome == b.outcome && a.acked_sequence == b.acked_sequence;
}

namespace {

absl::Status WriteRank(Transaction& transaction, const RankRecord& rank) {
  const pqxx::result moved = transaction.Run(
      kUpdateRank, Params(rank.id.job_uid, rank.id.attempt, rank.id.rank, RankStateName(rank.state),
                          RankOutcomeName(rank.outcome), rank.acked_sequence,
                          FailureJson(rank.failure), rank.gone_time));
  if (moved.size() == 1) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("rank ", rank.id.rank, " of attempt ", rank.id.attempt,
                                         " of job ", rank.id.job_uid, " changed under its lock"));
}

}  // namespace

absl::Status LockLeader(Transaction& transaction, int64_t epoch) {
  const std::string limit = absl::StrCat(absl::ToInt64Milliseconds(kLeaderStatementLimit));
  const auto newest = transaction.Run(kLockLeader, Params(limit))[0][0].as<int64_t>();
  if (newest == epoch) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("leader epoch ", epoch, " is over: the newest is ", newest));
}

absl::Time Now(Transaction& transaction) {
  return absl::FromUnixMicros(transaction.Run(kNow, Params())[0][0].as<int64_t>());
}

// A row that is moved while this waits for its lock is then found in the other table.
std::optional<JobRecord> LockJob(Transaction& transaction, const std::string& uid) {
  for (int i = 0; i < kMostMoves; ++i) {
    for (const Query* query : {&kLockJobByUid, &kLockEndedJobByUid}) {
      const pqxx::result rows = transaction.Run(*query, Params(uid));
      if (!rows.empty()) return JobOf(rows[0]);
    }
    if (transaction.Run(kJobExists, Params(uid)).empty()) return std::nullopt;
  }
  // Not to be taken for deleted: the transaction is to run again.
  throw pqxx::transaction_rollback("job " + uid + " moves between live and ended too often");
}

std::optional<AttemptRecord> ReadAttempt(Transaction& transaction, const std::string& uid,
                                         int64_t attempt) {
  if (attempt < 1) return std::nullopt;
  std::vector<AttemptRecord> attempts =
      AttemptsOf(transaction.Run(kReadAttempts, Params(uid, attempt)));
  if (attempts.empty()) return std::nullopt;
  return std::move(attempts[0]);
}

RanksOfJob LockRanks(Transaction& transaction, const std::string& uid) {
  RanksOfJob locked{.job = LockJob(transaction, uid), .attempt = {}};
  if (locked.job.has_value()) {
    locked.attempt = ReadAttempt(transaction, uid, locked.job->attempt);
  }
  return locked;
}

absl::Status RequireJob(Transaction& transaction, const std::string& uid) {
  if (!transaction.Run(kJobExists, Params(uid)).empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("the job with uid ", uid, " does not exist"));
}

void WriteSlots(Transaction& transaction, const JobRecord& before, const JobRecord& job) {
  const bool changed = job.min_slots != before.min_slots || job.max_slots != before.max_slots ||
                       job.resize != before.resize || job.layout != before.layout;
  if (!changed) return;
  transaction.Run(kUpdateSlots, Params(job.uid, job.min_slots, StoredMaxSlots(job),
                                       job.bytes_per_slot, ResizeJson(job.resize), job.slot_step,
                                       StoredMostSlots(job), job.group_ranks, job.layout));
}

namespace {

absl::Status ChangedUnderItsLock(const JobRecord& job) {
  return absl::AbortedError(absl::StrCat("job ", job.job_id, " changed under its lock"));
}

// Of a job that ended only its slots can change, and its feed has no more items.
absl::StatusOr<int64_t> WriteEndedJob(Transaction& transaction, const JobRecord& before,
                                      const JobRecord& job) {
  const pqxx::result written = transaction.Run(
      kResizeEndedJob, Params(job.uid, before.version, before.attempt, job.min_slots,
                              StoredMaxSlots(job), job.bytes_per_slot, job.slot_step,
                              StoredMostSlots(job), job.group_ranks, job.layout, job.version));
  if (written.size() != 1) return ChangedUnderItsLock(job);
  return written[0][0].as<int64_t>() + 1;
}

}  // namespace

absl::StatusOr<int64_t> WriteJob(Transaction& transaction, const JobRecord& before,
                                 const JobChange& change) {
  const JobRecord& job = change.job;
  const int64_t items = ItemsIn(change.feed);
  const bool revives = IsTerminal(before.state);
  if (revives && IsTerminal(job.state)) return WriteEndedJob(transaction, before, job);
  if (!revives) WriteSlots(transaction, before, job);
  const Query& query = IsTerminal(job.state) ? kEndJob : revives ? kReviveJob : kUpdateJob;
  const pqxx::result written = transaction.Run(
      query,
      Params(job.uid, before.version, before.attempt, JobStateName(job.state), job.reason.code,
             job.reason.message, SuspendCauseName(job.suspend_cause), job.version, job.attempt,
             job.restarts, job.step, job.update_time, job.not_before, job.start_time, job.end_time,
             job.suspend_deadline, FailureJson(job.failure), job.newest_checkpoint_uri, items,
             job.losses, job.avoid_node, job.arithmetic));
  if (written.size() != 1) return ChangedUnderItsLock(job);
  if (revives) WriteSlots(transaction, before, job);
  const int64_t first_sequence = written[0][0].as<int64_t>() - items + 1;
  TY_RETURN_IF_ERROR(
      WriteFeeds(transaction, {{job.uid, job.create_time, first_sequence, change.feed}}));
  TY_RETURN_IF_ERROR(CompactIfEnded(transaction, before, job));
  return first_sequence;
}

absl::StatusOr<int64_t> WriteAttempt(Transaction& transaction, const JobRecord& job_before,
                                     const AttemptRecord& before, const AttemptChange& change) {
  const AttemptRecord& attempt = change.attempt;
  for (size_t i = 0; i < attempt.ranks.size(); ++i) {
    if (SameRank(before.ranks[i], attempt.ranks[i])) continue;
    TY_RETURN_IF_ERROR(WriteRank(transaction, attempt.ranks[i]));
  }
  WriteCheckpoints(transaction, change.checkpoints);
  WriteFailures(transaction, NewFailures(change.change.job, before, attempt, change.time));
  for (const RankRecord& rank : RejoinedRanks(before, attempt)) {
    transaction.Run(kForgetLoss, Params(rank.node, rank.id.job_uid, rank.id.attempt));
  }
  // The job is written last: the rows of ranks are fenced by its row in `jobs`, which it leaves
  // when it ends.
  return WriteJob(transaction, job_before, change.change);
}

}  // namespace trainyard::postgres
