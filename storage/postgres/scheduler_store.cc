#include "storage/postgres/scheduler_store.h"

#include <algorithm>
#include <map>
#include <pqxx/pqxx>
#include <set>
#include <utility>

#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"
#include "storage/postgres/writes.h"

namespace trainyard::postgres {
namespace {

// Applies one set of decisions within one transaction. Locks: leader, then the nodes that are lost,
// then all jobs by uid (as all do who lock several: no deadlock), then the nodes that are placed
// on.
class Applier {
 public:
  Applier(Transaction& transaction, const Decisions& decisions)
      : transaction_(transaction), decisions_(decisions), now_(Now(transaction)) {}

  absl::StatusOr<int> Apply() {
    LoseNodes();
    LockJobs();
    for (const std::string& uid : losing_) TY_RETURN_IF_ERROR(LoseRanks(uid));
    for (const Suspension& suspension : decisions_.suspensions) {
      TY_RETURN_IF_ERROR(ApplySuspension(suspension));
    }
    ReadNodes();
    for (const Placement& placement : decisions_.placements) {
      TY_RETURN_IF_ERROR(ApplyPlacement(placement));
    }
    ApplyReasons();
    return changed_;
  }

 private:
  void LoseNodes();
  void LockJobs();
  absl::Status LoseRanks(const std::string& uid);
  absl::Status ApplySuspension(const Suspension& suspension);
  void ReadNodes();
  bool Fits(const Placement& placement) const;
  absl::Status ApplyPlacement(const Placement& placement);
  absl::Status WritePlaced(const JobRecord& before, const Placed& placed);
  void ApplyReasons();

  Transaction& transaction_;
  const Decisions& decisions_;
  const absl::Time now_;
  std::vector<std::string> lost_;  // nodes
  std::set<std::string> losing_;   // jobs with ranks there
  std::map<std::string, NodeRecord> nodes_;
  std::set<std::pair<std::string, int>> held_;
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
  std::vector<std::string> uids(losing_.begin(), losing_.end());
  for (const Suspension& suspension : decisions_.suspensions) uids.push_back(suspension.job_uid);
  for (const Placement& placement : decisions_.placements) uids.push_back(placement.job_uid);
  if (!uids.empty()) transaction_.Run(kLockJobs, Params(uids));
}

absl::Status Applier::LoseRanks(const std::string& uid) {
  const std::optional<JobRecord> job = LockJob(transaction_, uid);
  if (!job.has_value()) return absl::OkStatus();
  const std::optional<AttemptRecord> attempt = ReadAttempt(transaction_, uid, job->attempt);
  if (!attempt.has_value()) return absl::OkStatus();
  std::vector<int> lost;
  for (const RankRecord& rank : attempt->ranks) {
    if (std::find(lost_.begin(), lost_.end(), rank.node) != lost_.end())
      lost.push_back(rank.id.rank);
  }
  const AttemptChange change = DropRanks(*job, *attempt, lost, RankOutcome::kLost, now_);
  if (!change.wishes_changed) return absl::OkStatus();
  ++changed_;
  return WriteAttempt(transaction_, *job, *attempt, change);
}

absl::Status Applier::ApplySuspension(const Suspension& suspension) {
  const std::optional<JobRecord> job = LockJob(transaction_, suspension.job_uid);
  if (!job.has_value() || job->version != suspension.job_version ||
      (job->state != JobState::kStarting && job->state != JobState::kRunning)) {
    return absl::OkStatus();
  }
  ++changed_;
  return WriteJob(transaction_, *job,
                  SuspendJob(*job, suspension.cause, suspension.reason, suspension.grace, now_));
}

void Applier::ReadNodes() {
  std::set<std::string> names;
  for (const Placement& placement : decisions_.placements) {
    for (const Placement::Rank& rank : placement.ranks) names.insert(rank.node);
  }
  if (names.empty()) return;
  const Params wanted(std::vector<std::string>(names.begin(), names.end()));
  for (const pqxx::row& row : transaction_.Run(kShareNodes, wanted)) {
    NodeRecord node = NodeOf(row);
    nodes_[node.name] = std::move(node);
  }
  for (const pqxx::row& row : transaction_.Run(kHeldSlots, wanted)) {
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

absl::Status Applier::ApplyPlacement(const Placement& placement) {
  if (!Fits(placement)) return absl::OkStatus();
  const std::optional<JobRecord> job = LockJob(transaction_, placement.job_uid);
  if (!job.has_value() || job->version != placement.job_version ||
      job->state != JobState::kQueued) {
    return absl::OkStatus();
  }
  std::optional<CheckpointRecord> newest;
  for (const pqxx::row& row : transaction_.Run(kListCheckpoints, Params(job->uid, 1))) {
    newest = CheckpointOf(row);
  }
  std::vector<RankRecord> ranks;
  for (const Placement::Rank& rank : placement.ranks) {
    RankRecord& one = ranks.emplace_back();
    one.node = rank.node;
    one.slots = rank.slots;
    for (const int slot : rank.slots) held_.emplace(rank.node, slot);
  }
  ++changed_;
  return WritePlaced(
      *job, PlaceJob(*job, ranks, newest.has_value() ? &*newest : nullptr, placement.reason, now_));
}

absl::Status Applier::WritePlaced(const JobRecord& before, const Placed& placed) {
  TY_RETURN_IF_ERROR(WriteJob(transaction_, before, placed.change));
  const AttemptRecord& attempt = placed.attempt;
  transaction_.Run(kInsertAttempt, Params(attempt.job_uid, attempt.attempt, attempt.world_size,
                                          attempt.restore_step, attempt.restore_uri,
                                          attempt.restore_manifest_sha256, attempt.create_time));
  std::vector<int> numbers;
  std::vector<std::string> nodes;
  std::vector<std::string> slots;
  for (const RankRecord& rank : attempt.ranks) {
    numbers.push_back(rank.id.rank);
    nodes.push_back(rank.node);
    slots.push_back(ArrayLiteral(rank.slots));
  }
  transaction_.Run(kInsertRanks, Params(attempt.job_uid, attempt.attempt, numbers, nodes, slots));
  return absl::OkStatus();
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
  transaction_.Run(kUpdateReasons, Params(uids, versions, codes, messages));
}

}  // namespace

absl::StatusOr<LeaderLease> PostgresSchedulerStore::Lead(const std::string& holder,
                                                         absl::Duration lease) {
  if (holder.empty()) return absl::InvalidArgumentError("holder: empty");
  return database_.Run("lead", [&](Transaction& transaction) -> absl::StatusOr<LeaderLease> {
    const pqxx::result rows = transaction.Run(kLead, Params(holder, lease));
    if (rows.empty()) {
      const pqxx::result leader = transaction.Run(kWhoLeads, Params());
      return absl::FailedPreconditionError(absl::StrCat(leader[0][0].c_str(), " leads"));
    }
    return LeaderLease{rows[0]["epoch"].as<int64_t>(),
                       absl::FromUnixMicros(rows[0]["lease_end"].as<int64_t>())};
  });
}

absl::Status PostgresSchedulerStore::StandDown(const std::string& holder) {
  return database_.Run("stand down", [&](Transaction& transaction) -> absl::Status {
    transaction.Run(kStandDown, Params(holder));
    return absl::OkStatus();
  });
}

std::shared_ptr<const PostgresSchedulerStore::QueuedJobs> PostgresSchedulerStore::ReadQueue(
    Transaction& transaction) {
  constexpr size_t kMostByUid = 1000;  // more are read with the whole queue
  std::shared_ptr<const QueuedJobs> before;
  {
    absl::MutexLock lock(&mu_);
    before = queue_;
  }
  const pqxx::result rows = transaction.Run(kSnapshotQueue, Params());
  auto queue = std::make_shared<QueuedJobs>();
  queue->reserve(rows.size());
  std::vector<std::string> changed;
  auto known = before->begin();
  for (const pqxx::row& row : rows) {
    const absl::string_view uid = row[0].c_str();
    while (known != before->end() && known->uid < uid) ++known;
    if (known != before->end() && known->uid == uid && known->version == row[1].as<int64_t>() &&
        known->reason.code == row[2].c_str() && known->reason.message == row[3].c_str()) {
      queue->push_back(*known);
    } else {
      changed.emplace_back(uid);
    }
  }
  const auto add = [&](const pqxx::result& found) {
    for (const pqxx::row& row : found) queue->push_back(JobOf(row));
  };
  if (changed.size() > kMostByUid) {
    queue->clear();
    add(transaction.Run(kSnapshotQueuedJobs, Params()));
  } else if (!changed.empty()) {
    const auto middle = static_cast<std::ptrdiff_t>(queue->size());
    add(transaction.Run(kSnapshotSomeJobs, Params(changed)));
    std::inplace_merge(queue->begin(), queue->begin() + middle, queue->end(),
                       [](const JobRecord& a, const JobRecord& b) { return a.uid < b.uid; });
  }
  absl::MutexLock lock(&mu_);
  queue_ = queue;
  return queue;
}

absl::StatusOr<SchedulerSnapshot> PostgresSchedulerStore::ReadSnapshot() {
  const auto read = [this](Transaction& transaction) -> absl::StatusOr<SchedulerSnapshot> {
    SchedulerSnapshot snapshot{.jobs = *ReadQueue(transaction)};
    for (const pqxx::row& row : transaction.Run(kSnapshotJobs, Params())) {
      snapshot.jobs.push_back(JobOf(row));
    }
    snapshot.attempts = AttemptsOf(transaction.Run(kSnapshotAttempts, Params()));
    for (const pqxx::row& row : transaction.Run(kListNodes, Params())) {
      snapshot.nodes.push_back(NodeOf(row));
    }
    snapshot.now = Now(transaction);
    return snapshot;
  };
  return database_.Run("read snapshot", read, Access::kSnapshot);
}

absl::StatusOr<int> PostgresSchedulerStore::Apply(int64_t leader_epoch,
                                                  const Decisions& decisions) {
  TY_RETURN_IF_ERROR(CheckDecisions(decisions));
  return database_.Run("apply decisions", [&](Transaction& transaction) -> absl::StatusOr<int> {
    const int64_t epoch = transaction.Run(kLockLeader, Params())[0][0].as<int64_t>();
    if (epoch != leader_epoch) {
      return absl::AbortedError(
          absl::StrCat("leader epoch ", leader_epoch, " is over: the newest is ", epoch));
    }
    TY_ASSIGN_OR_RETURN(const int changed, Applier(transaction, decisions).Apply());
    // Something may have been applied by the try whose answer was lost: the fleet must be woken.
    return changed == 0 && transaction.repeated_in_doubt ? 1 : changed;
  });
}

}  // namespace trainyard::postgres
