#include "storage/postgres/scheduler_store.h"

#include <algorithm>
#include <map>
#include <pqxx/pqxx>
#include <set>
#include <utility>

#include "storage/base/ids.h"
#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"
#include "storage/postgres/writes.h"

namespace trainyard::postgres {
namespace {

constexpr int64_t kNoBeat = -1;  // beats count up from 0
constexpr int kClaimBytes = 8;

// Applies one set of decisions within one transaction, with as many statements for 256 placements
// as for one. Locks: leader, then the nodes that are lost, then all jobs by uid (as all do who lock
// several: no deadlock), then the nodes that are placed on.
class Applier {
 public:
  Applier(Transaction& transaction, const Decisions& decisions)
      : transaction_(transaction), decisions_(decisions), now_(Now(transaction)) {}

  absl::StatusOr<int> Apply() {
    LoseNodes();
    LockJobs();
    CordonNodes();
    for (const std::string& uid : losing_) TY_RETURN_IF_ERROR(LoseRanks(uid));
    for (const FailedStart& start : decisions_.failed_starts) TY_RETURN_IF_ERROR(Fail(start));
    for (const LossCharge& charge : decisions_.charges) TY_RETURN_IF_ERROR(Charge(charge));
    for (const OverdueCancel& overdue : decisions_.overdue_cancels) {
      TY_RETURN_IF_ERROR(End(overdue));
    }
    for (const Suspension& suspension : decisions_.suspensions) {
      TY_RETURN_IF_ERROR(ApplySuspension(suspension));
    }
    for (const Resize& resize : decisions_.resizes) TY_RETURN_IF_ERROR(ApplyResize(resize));
    ReadPlacedJobs();
    ReadNodes();
    for (const Placement& placement : decisions_.placements) Place(placement);
    TY_RETURN_IF_ERROR(WritePlaced());
    ApplyReasons();
    return changed_;
  }

 private:
  void LoseNodes();
  void LockJobs();
  absl::Status LoseRanks(const std::string& uid);
  absl::Status ApplySuspension(const Suspension& suspension);
  absl::Status ApplyResize(const Resize& resize);
  void CordonNodes();
  absl::Status Fail(const FailedStart& start);
  absl::Status Charge(const LossCharge& charge);
  absl::Status End(const OverdueCancel& overdue);
  void ReadNodes();
  bool Fits(const Placement& placement) const;
  void ReadPlacedJobs();
  void Place(const Placement& placement);
  absl::Status WritePlaced();
  absl::Status WriteFeedsOfPlaced(const std::map<std::string, int64_t>& newest_sequences);
  void WriteRanks();
  void ApplyReasons();

  // The job of a decision, locked; nothing if it was deleted or has changed since.
  template <typename Decision>
  std::optional<JobRecord> LockAsDecided(const Decision& decision) {
    std::optional<JobRecord> job = LockJob(transaction_, decision.job_uid);
    if (job.has_value() && job->version != decision.job_version) job.reset();
    return job;
  }

  // Runs a statement with a plan made for these values: a generic plan, for arrays of any length,
  // is bad for long ones.
  pqxx::result RunPlanned(const Query& query, const Params& params) {
    return transaction_.RunText(query.text, params);
  }

  Transaction& transaction_;
  const Decisions& decisions_;
  const absl::Time now_;
  std::vector<std::string> lost_;  // nodes
  std::set<std::string> losing_;   // jobs with ranks there
  std::map<std::string, NodeRecord> nodes_;
  std::set<std::pair<std::string, int>> held_;
  std::map<std::string, JobRecord> jobs_;  // that are to be placed
  std::map<std::string, CheckpointRecord> checkpoints_;
  std::vector<Placed> placed_;
  int changed_ = 0;
};

void Applier::LoseNodes() {
  if (decisions_.lost_nodes.empty()) return;
  std::vector<std::string> names;
  std::vector<int64_t> beats;
  for (const LostNode& lost : decisions_.lost_nodes) {
    names.push_back(lost.name);
    beats.push_back(lost.beat);
  }
  for (const pqxx::row& row : transaction_.Run(kLoseNodes, Params(names, beats))) {
    lost_.push_back(row[0].as<std::string>());
  }
  for (const pqxx::row& row : transaction_.Run(kAliveRanks, Params(lost_))) {
    losing_.insert(row[0].as<std::string>());
  }
}

void Applier::LockJobs() {
  if (losing_.empty() && decisions_.suspensions.empty() && decisions_.failed_starts.empty() &&
      decisions_.charges.empty() && decisions_.overdue_cancels.empty() &&
      decisions_.resizes.empty()) {
    return;  // ReadPlacedJobs locks
  }
  std::vector<std::string> uids(losing_.begin(), losing_.end());
  for (const FailedStart& start : decisions_.failed_starts) uids.push_back(start.job_uid);
  for (const LossCharge& charge : decisions_.charges) uids.push_back(charge.job_uid);
  for (const OverdueCancel& one : decisions_.overdue_cancels) uids.push_back(one.job_uid);
  for (const Suspension& suspension : decisions_.suspensions) uids.push_back(suspension.job_uid);
  for (const Resize& resize : decisions_.resizes) uids.push_back(resize.job_uid);
  for (const Placement& placement : decisions_.placements) uids.push_back(placement.job_uid);
  RunPlanned(kLockJobs, Params(uids));
}

absl::Status Applier::LoseRanks(const std::string& uid) {
  const auto [job, attempt] = LockRanks(transaction_, uid);
  if (!attempt.has_value()) return absl::OkStatus();
  std::vector<int> lost;
  for (const RankRecord& rank : attempt->ranks) {
    if (std::find(lost_.begin(), lost_.end(), rank.node) != lost_.end())
      lost.push_back(rank.id.rank);
  }
  const AttemptChange change = DropRanks(*job, *attempt, lost, RankOutcome::kLost, now_);
  if (!change.wishes_changed) return absl::OkStatus();
  ++changed_;
  return WriteAttempt(transaction_, *job, *attempt, change).status();
}

absl::Status Applier::ApplySuspension(const Suspension& suspension) {
  const std::optional<JobRecord> job = LockAsDecided(suspension);
  if (!job.has_value() || (job->state != JobState::kStarting && job->state != JobState::kRunning)) {
    return absl::OkStatus();
  }
  ++changed_;
  return WriteJob(transaction_, *job,
                  SuspendJob(*job, suspension.cause, suspension.reason, suspension.grace, now_))
      .status();
}

absl::Status Applier::ApplyResize(const Resize& resize) {
  const std::optional<JobRecord> job = LockAsDecided(resize);
  if (!job.has_value() || job->state != JobState::kRunning) return absl::OkStatus();
  ++changed_;
  return WriteJob(transaction_, *job,
                  ResizeJob(*job, resize.ranks, resize.grows, resize.reason, resize.grace, now_))
      .status();
}

void Applier::CordonNodes() {
  if (decisions_.cordons.empty()) return;
  std::vector<std::string> names, reasons;
  for (const NodeCordon& cordon : decisions_.cordons) {
    names.push_back(cordon.name);
    reasons.push_back(cordon.reason);
  }
  changed_ +=
      static_cast<int>(transaction_.Run(kCordonNodes, Params(names, reasons)).affected_rows());
}

absl::Status Applier::Fail(const FailedStart& start) {
  const std::optional<JobRecord> job = LockAsDecided(start);
  if (!job.has_value()) return absl::OkStatus();
  const std::optional<AttemptRecord> attempt = ReadAttempt(transaction_, job->uid, job->attempt);
  if (!attempt.has_value()) return absl::OkStatus();
  const AttemptChange change = FailStart(*job, *attempt, start.failure.rank, start.failure, now_);
  if (!change.wishes_changed) return absl::OkStatus();
  ++changed_;
  return WriteAttempt(transaction_, *job, *attempt, change).status();
}

absl::Status Applier::Charge(const LossCharge& charge) {
  const std::optional<JobRecord> job = LockAsDecided(charge);
  if (!job.has_value()) return absl::OkStatus();
  const JobChange change = ChargeLoss(*job, charge.node, charge.survivor, now_);
  if (!change.changed) return absl::OkStatus();
  ++changed_;
  transaction_.Run(kChargeNodeFailure, Params(charge.node, charge.job_uid, charge.attempt));
  return WriteJob(transaction_, *job, change).status();
}

absl::Status Applier::End(const OverdueCancel& overdue) {
  const std::optional<JobRecord> job = LockAsDecided(overdue);
  if (!job.has_value()) return absl::OkStatus();
  const std::optional<AttemptRecord> attempt = ReadAttempt(transaction_, job->uid, job->attempt);
  if (!attempt.has_value()) return absl::OkStatus();
  const JobChange change = EndCancelled(*job, *attempt, now_);
  if (!change.changed) return absl::OkStatus();
  ++changed_;
  return WriteJob(transaction_, *job, change).status();
}

void Applier::ReadNodes() {
  std::set<std::string> names;
  for (const Placement& placement : decisions_.placements) {
    for (const Placement::Rank& rank : placement.ranks) names.insert(rank.node);
  }
  if (names.empty()) return;
  const Params wanted(std::vector<std::string>(names.begin(), names.end()));
  for (const pqxx::row& row : RunPlanned(kShareNodes, wanted)) {
    NodeRecord node = NodeOf(row);
    nodes_[node.name] = std::move(node);
  }
  for (const pqxx::row& row : RunPlanned(kHeldSlots, wanted)) {
    held_.emplace(row[0].as<std::string>(), row[1].as<int>());
  }
}

bool Applier::Fits(const Placement& placement) const {
  return std::all_of(placement.ranks.begin(), placement.ranks.end(), [this](const auto& rank) {
    const auto node = nodes_.find(rank.node);
    return node != nodes_.end() && TakesWork(node->second, rank.slots) &&
           std::none_of(rank.slots.begin(), rank.slots.end(), [&](int slot) {
             return held_.count({rank.node, slot}) > 0;
           });
  });
}

void Applier::ReadPlacedJobs() {
  std::vector<std::string> uids;
  for (const Placement& placement : decisions_.placements) uids.push_back(placement.job_uid);
  if (uids.empty()) return;
  // Only these have checkpoints; a job that was never placed has some if its yard was restored from
  // a backup of before.
  std::vector<std::string> tried;
  for (const pqxx::row& row : RunPlanned(kLockPlacedJobs, Params(uids))) {
    JobRecord job = JobOf(row);
    if (job.attempt > 0 || !job.newest_checkpoint_uri.empty()) tried.push_back(job.uid);
    jobs_[job.uid] = std::move(job);
  }
  if (tried.empty()) return;
  for (const pqxx::row& row : RunPlanned(kNewestCheckpoints, Params(tried))) {
    CheckpointRecord checkpoint = CheckpointOf(row);
    checkpoints_[checkpoint.job_uid] = std::move(checkpoint);
  }
}

void Applier::Place(const Placement& placement) {
  if (!Fits(placement)) return;
  const auto found = jobs_.find(placement.job_uid);
  if (found == jobs_.end() || found->second.version != placement.job_version ||
      found->second.state != JobState::kQueued) {
    return;
  }
  const auto newest = checkpoints_.find(placement.job_uid);
  std::vector<RankRecord> ranks;
  for (const Placement::Rank& rank : placement.ranks) {
    RankRecord& one = ranks.emplace_back();
    one.node = rank.node;
    one.slots = rank.slots;
    const NodeRecord& node = nodes_.at(rank.node);
    one.claim = {node.uid, node.instance, RandomHex(kClaimBytes)};
    for (const int slot : rank.slots) held_.emplace(rank.node, slot);
  }
  placed_.push_back(PlaceJob(found->second, ranks,
                             newest == checkpoints_.end() ? nullptr : &newest->second,
                             placement.reason, now_));
  found->second = placed_.back().change.job;
}

absl::Status Applier::WritePlaced() {
  if (placed_.empty()) return absl::OkStatus();
  changed_ += static_cast<int>(placed_.size());
  std::vector<std::string> uids, codes, messages;
  std::vector<int64_t> versions, attempts, steps, items;
  for (const Placed& placed : placed_) {
    const JobRecord& job = placed.change.job;
    uids.push_back(job.uid);
    versions.push_back(job.version);
    attempts.push_back(job.attempt);
    codes.push_back(job.reason.code);
    messages.push_back(job.reason.message);
    steps.push_back(job.step);
    items.push_back(ItemsIn(placed.change.feed));
  }
  std::map<std::string, int64_t> sequences;  // of the newest item
  for (const pqxx::row& row : RunPlanned(
           kPlaceJobs, Params(uids, versions, attempts, codes, messages, steps, items, now_))) {
    sequences[row[0].as<std::string>()] = row[1].as<int64_t>();
  }
  if (sequences.size() != placed_.size()) {
    return absl::AbortedError("a job that is placed changed under its lock");
  }
  TY_RETURN_IF_ERROR(WriteFeedsOfPlaced(sequences));
  WriteRanks();
  return absl::OkStatus();
}

absl::Status Applier::WriteFeedsOfPlaced(const std::map<std::string, int64_t>& newest_sequences) {
  std::vector<NewFeedItems> feeds;
  for (const Placed& placed : placed_) {
    const JobRecord& job = placed.change.job;
    const std::vector<FeedRecord>& feed = placed.change.feed;
    feeds.push_back(
        {job.uid, job.create_time, newest_sequences.at(job.uid) - ItemsIn(feed) + 1, feed});
  }
  return WriteFeeds(transaction_, feeds);
}

void Applier::WriteRanks() {
  std::vector<std::string> uids, uris, manifests, layouts, rank_uids, nodes, slots, holders,
      instances, claims;
  std::vector<int64_t> steps, attempts;
  std::vector<int> sizes, ranks;
  for (const Placed& placed : placed_) {
    const AttemptRecord& attempt = placed.attempt;
    uids.push_back(attempt.job_uid);
    sizes.push_back(attempt.world_size);
    steps.push_back(attempt.restore_step);
    uris.push_back(attempt.restore_uri);
    manifests.push_back(attempt.restore_manifest_sha256);
    layouts.push_back(attempt.layout);
    for (const RankRecord& rank : attempt.ranks) {
      rank_uids.push_back(attempt.job_uid);
      attempts.push_back(attempt.attempt);
      ranks.push_back(rank.id.rank);
      nodes.push_back(rank.node);
      slots.push_back(ArrayLiteral(rank.slots));
      holders.push_back(rank.claim.node_uid);
      instances.push_back(rank.claim.instance);
      claims.push_back(rank.claim.token);
    }
  }
  RunPlanned(kInsertRanks, Params(rank_uids, attempts, ranks, nodes, slots, holders, instances,
                                  claims, uids, sizes, steps, uris, manifests, now_, layouts));
}

void Applier::ApplyReasons() {
  if (decisions_.reasons.empty()) return;
  std::vector<std::string> uids, codes, messages;
  std::vector<int64_t> versions;
  for (const ReasonUpdate& update : decisions_.reasons) {
    uids.push_back(update.job_uid);
    versions.push_back(update.job_version);
    codes.push_back(update.reason.code);
    messages.push_back(update.reason.message);
  }
  RunPlanned(kUpdateReasons, Params(uids, versions, codes, messages));
}

}  // namespace

absl::StatusOr<LeaderRecord> PostgresSchedulerStore::ReadLeader() {
  const auto read = [](Transaction& transaction) -> absl::StatusOr<LeaderRecord> {
    const pqxx::result rows = transaction.Run(kReadLeader, Params());
    return LeaderRecord{rows[0]["holder"].c_str(), rows[0]["epoch"].as<int64_t>(),
                        rows[0]["beat"].as<int64_t>()};
  };
  return leases_.Run("read the leader", read, Access::kStatements);
}

absl::StatusOr<LeaderLease> PostgresSchedulerStore::Lead(const std::string& holder,
                                                         absl::Duration lease,
                                                         std::optional<int64_t> stale_beat) {
  if (holder.empty()) return absl::InvalidArgumentError("holder: empty");
  return leases_.Run("lead", [&](Transaction& transaction) -> absl::StatusOr<LeaderLease> {
    const pqxx::result rows =
        transaction.Run(kLead, Params(holder, lease, stale_beat.value_or(kNoBeat)));
    if (rows.empty()) {
      const pqxx::result leader = transaction.Run(kReadLeader, Params());
      return absl::FailedPreconditionError(absl::StrCat(leader[0][0].c_str(), " leads"));
    }
    return LeaderLease{rows[0]["epoch"].as<int64_t>(),
                       absl::FromUnixMicros(rows[0]["lease_end"].as<int64_t>())};
  });
}

absl::Status PostgresSchedulerStore::StandDown(const std::string& holder) {
  return leases_.Run("stand down", [&](Transaction& transaction) -> absl::Status {
    transaction.Run(kStandDown, Params(holder));
    return absl::OkStatus();
  });
}

absl::StatusOr<SchedulerSnapshot> PostgresSchedulerStore::ReadSnapshot() {
  const auto read = [this](Transaction& transaction) -> absl::StatusOr<SchedulerSnapshot> {
    TY_ASSIGN_OR_RETURN(SchedulerSnapshot snapshot,
                        reader_.ReadJobs(transaction, database_.losses()));
    snapshot.nodes = AllNodesOf(transaction.Run(kListNodes, Params()));
    return snapshot;
  };
  return database_.Run("read snapshot", read, Access::kSnapshot);
}

absl::StatusOr<SnapshotChanges> PostgresSchedulerStore::ReadChanges(const ChangePosition& since,
                                                                    bool leases) {
  const auto read = [&](Transaction& transaction) {
    return ReadChangesIn(transaction, database_.losses(), since, leases);
  };
  return database_.Run("read changes", read, Access::kSnapshot);
}

absl::StatusOr<int> PostgresSchedulerStore::Apply(int64_t leader_epoch,
                                                  const Decisions& decisions) {
  TY_RETURN_IF_ERROR(CheckDecisions(decisions));
  return database_.Run("apply decisions", [&](Transaction& transaction) -> absl::StatusOr<int> {
    TY_RETURN_IF_ERROR(LockLeader(transaction, leader_epoch));
    TY_ASSIGN_OR_RETURN(const int changed, Applier(transaction, decisions).Apply());
    // Something may have been applied by the try whose answer was lost: the fleet must be woken.
    return changed == 0 && transaction.repeated_in_doubt ? 1 : changed;
  });
}

}  // namespace trainyard::postgres
