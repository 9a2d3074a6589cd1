#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

absl::StatusOr<LeaderRecord> MemoryStores::ReadLeader() {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  return leader_;
}

absl::StatusOr<LeaderLease> MemoryStores::Lead(const std::string& holder, absl::Duration lease,
                                               std::optional<int64_t> stale_beat) {
  TY_RETURN_IF_ERROR(Available());
  if (holder.empty()) return absl::InvalidArgumentError("holder: empty");
  absl::MutexLock lock(&mu_);
  if (!leader_.holder.empty() && ReplicaOf(leader_.holder) != ReplicaOf(holder) &&
      stale_beat != leader_.beat) {
    return absl::FailedPreconditionError(absl::StrCat(leader_.holder, " leads"));
  }
  if (leader_.holder != holder) leader_.epoch += 1;
  leader_.holder = holder;
  leader_.beat += 1;
  return LeaderLease{leader_.epoch, ToMicroseconds(Now() + lease)};
}

absl::Status MemoryStores::StandDown(const std::string& holder) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  if (leader_.holder != holder) return absl::OkStatus();
  leader_.holder.clear();
  leader_.beat += 1;
  return absl::OkStatus();
}

absl::StatusOr<SchedulerSnapshot> MemoryStores::ReadSnapshot() {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  SnapshotChanges all;
  for (const auto& [uid, entry] : by_uid_) TellJob(uid, all);
  SchedulerSnapshot snapshot{
      .now = Now(), .jobs = std::move(all.jobs), .attempts = std::move(all.attempts)};
  for (const auto& [name, node] : nodes_) snapshot.nodes.push_back(node);
  for (const auto& [name, project] : projects_) {
    if (project.max_slots.has_value()) snapshot.slot_limits[name] = *project.max_slots;
  }
  return snapshot;
}

void MemoryStores::TellJob(const std::string& uid, SnapshotChanges& changes) {
  const auto found = by_uid_.find(uid);
  const bool holds = found != by_uid_.end() && HoldsSlots(found->second.job.state);
  if (!holds && (found == by_uid_.end() || found->second.job.state != JobState::kQueued)) {
    changes.gone.push_back(uid);
    return;
  }
  const JobEntry& entry = found->second;
  changes.jobs.push_back(entry.job);
  changes.jobs.back().spec.clear();
  if (holds) changes.attempts.push_back(entry.attempts.at(entry.job.attempt));
}

absl::StatusOr<SnapshotChanges> MemoryStores::ReadChanges(const ChangePosition& since,
                                                          bool leases) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  SnapshotChanges changes;
  changes.now = Now();
  changes.position = absl::StrCat(writes_);
  int64_t seen = 0;
  changes.whole = !absl::SimpleAtoi(since, &seen);
  for (const auto& [uid, entry] : by_uid_) {
    if (changes.whole || entry.changed > seen) TellJob(uid, changes);
  }
  for (const auto& [written, uid] : deleted_) {
    if (!changes.whole && written > seen) changes.gone.push_back(uid);
  }
  for (const auto& [name, node] : nodes_) {
    if (changes.whole || node_changed_[name] > seen) changes.nodes.push_back(node);
  }
  for (const auto& [name, project] : projects_) {
    if (changes.whole || project_changed_[name] > seen) {
      changes.slot_limits.emplace_back(name, project.max_slots);
    }
  }
  if (leases) {
    changes.leases.emplace();
    for (const auto& [name, node] : nodes_) {
      changes.leases->push_back({name, node.beat, node.report});
      changes.leases->back().report.usage.clear();
    }
  }
  return changes;
}

MemoryStores::JobEntry* MemoryStores::FindAt(const std::string& uid, int64_t version) {
  const auto found = by_uid_.find(uid);
  return found == by_uid_.end() || found->second.job.version != version ? nullptr : &found->second;
}

int MemoryStores::ApplyLosses(const std::vector<LostNode>& nodes) {
  int changed = 0;
  for (const LostNode& lost : nodes) {
    const auto node = nodes_.find(lost.name);
    if (node == nodes_.end() || !node->second.reachable || node->second.beat != lost.beat) continue;
    node->second.reachable = false;
    node->second.leave_time = absl::InfiniteFuture();
    node_changed_[lost.name] = ++writes_;
    changed += DropRanksOf(lost.name, nullptr, RankOutcome::kLost);
  }
  return changed;
}

bool MemoryStores::SlotsFree(const Placement& placement) {
  for (const Placement::Rank& rank : placement.ranks) {
    const auto node = nodes_.find(rank.node);
    if (node == nodes_.end() || !TakesWork(node->second, rank.slots)) return false;
    for (const int slot : rank.slots) {
      if (held_slots_.count({rank.node, slot}) > 0) return false;
    }
  }
  return true;
}

bool MemoryStores::ApplyPlacement(const Placement& placement) {
  JobEntry* const entry = FindAt(placement.job_uid, placement.job_version);
  if (entry == nullptr || entry->job.state != JobState::kQueued || !SlotsFree(placement)) {
    return false;
  }
  std::vector<RankRecord> ranks;
  for (const Placement::Rank& rank : placement.ranks) {
    const NodeRecord& node = nodes_.at(rank.node);
    ranks.push_back({.node = rank.node,
                     .claim = {node.uid, node.instance, absl::StrCat("claim-", ++claims_)},
                     .slots = rank.slots});
  }
  const CheckpointRecord* newest =
      entry->checkpoints.empty() ? nullptr : &entry->checkpoints.rbegin()->second;
  const Placed placed = PlaceJob(entry->job, ranks, newest, placement.reason, Now());
  Write(*entry, placed.change);
  AttemptRecord& attempt = entry->attempts[placed.attempt.attempt] = placed.attempt;
  attempt.lost_before = AnyLostBefore(*entry);
  for (const RankRecord& rank : placed.attempt.ranks) {
    for (const int slot : rank.slots) held_slots_[{rank.node, slot}] = rank.id;
  }
  return true;
}

bool MemoryStores::ApplySuspension(const Suspension& suspension) {
  JobEntry* const entry = FindAt(suspension.job_uid, suspension.job_version);
  if (entry == nullptr ||
      (entry->job.state != JobState::kStarting && entry->job.state != JobState::kRunning)) {
    return false;
  }
  Write(*entry,
        SuspendJob(entry->job, suspension.cause, suspension.reason, suspension.grace, Now()));
  return true;
}

bool MemoryStores::ApplyResize(const Resize& resize) {
  JobEntry* const entry = FindAt(resize.job_uid, resize.job_version);
  if (entry == nullptr || entry->job.state != JobState::kRunning) return false;
  Write(*entry,
        ResizeJob(entry->job, resize.ranks, resize.grows, resize.reason, resize.grace, Now()));
  return true;
}

bool MemoryStores::ApplyCordon(const NodeCordon& cordon) {
  const auto node = nodes_.find(cordon.name);
  if (node == nodes_.end() || !node->second.cordon.empty()) return false;
  node->second.cordon = cordon.reason;
  node_changed_[cordon.name] = ++writes_;
  return true;
}

bool MemoryStores::ApplyFailedStart(const FailedStart& start) {
  JobEntry* const entry = FindAt(start.job_uid, start.job_version);
  if (entry == nullptr) return false;
  const AttemptRecord* attempt = NewestAttempt(*entry, entry->job.attempt);
  if (attempt == nullptr) return false;
  const AttemptChange change =
      FailStart(entry->job, *attempt, start.failure.rank, start.failure, Now());
  if (!change.wishes_changed) return false;
  Write(*entry, change);
  return true;
}

bool MemoryStores::ApplyCharge(const LossCharge& charge) {
  JobEntry* const entry = FindAt(charge.job_uid, charge.job_version);
  if (entry == nullptr) return false;
  const JobChange change = ChargeLoss(entry->job, charge.node, charge.survivor, Now());
  if (!change.changed) return false;
  Write(*entry, change);
  const auto node = nodes_.find(charge.node);
  if (node == nodes_.end()) return true;
  for (NodeFailure& failure : node->second.failures) {
    failure.charged |= failure.job_uid == charge.job_uid && failure.attempt == charge.attempt;
  }
  node_changed_[charge.node] = ++writes_;
  return true;
}

bool MemoryStores::ApplyEnd(const OverdueCancel& overdue) {
  JobEntry* const entry = FindAt(overdue.job_uid, overdue.job_version);
  if (entry == nullptr) return false;
  const AttemptRecord* attempt = NewestAttempt(*entry, entry->job.attempt);
  if (attempt == nullptr) return false;
  const JobChange change = EndCancelled(entry->job, *attempt, Now());
  if (!change.changed) return false;
  Write(*entry, change);
  return true;
}

absl::StatusOr<int> MemoryStores::Apply(int64_t leader_epoch, const Decisions& decisions) {
  TY_RETURN_IF_ERROR(Available());
  TY_RETURN_IF_ERROR(CheckDecisions(decisions));
  absl::MutexLock lock(&mu_);
  TY_RETURN_IF_ERROR(CheckLeads(leader_epoch));
  int changed = ApplyLosses(decisions.lost_nodes);
  for (const NodeCordon& cordon : decisions.cordons) changed += ApplyCordon(cordon);
  for (const FailedStart& start : decisions.failed_starts) changed += ApplyFailedStart(start);
  for (const LossCharge& charge : decisions.charges) changed += ApplyCharge(charge);
  for (const OverdueCancel& overdue : decisions.overdue_cancels) changed += ApplyEnd(overdue);
  for (const Suspension& suspension : decisions.suspensions) changed += ApplySuspension(suspension);
  for (const Resize& resize : decisions.resizes) changed += ApplyResize(resize);
  for (const Placement& placement : decisions.placements) changed += ApplyPlacement(placement);
  for (const ReasonUpdate& update : decisions.reasons) {
    JobEntry* const entry = FindAt(update.job_uid, update.job_version);
    if (entry == nullptr || entry->job.state != JobState::kQueued) continue;
    entry->job.reason = update.reason;
    entry->changed = ++writes_;
  }
  return changed;
}

absl::StatusOr<std::optional<AuthorityRecord>> MemoryStores::FindAuthority() {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  return authority_;
}

absl::StatusOr<AuthorityRecord> MemoryStores::AddAuthority(const AuthorityRecord& record) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  if (!authority_.has_value()) authority_ = record;
  return *authority_;
}

}  // namespace trainyard
