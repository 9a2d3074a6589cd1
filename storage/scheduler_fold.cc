#include "storage/scheduler_fold.h"

#include <utility>

namespace trainyard {

void SchedulerFold::Forget(const std::string& uid) {
  holders_.erase(uid);
  const auto known = waiting_by_uid_.find(uid);
  if (known == waiting_by_uid_.end()) return;
  waiting_.erase(known->second);
  waiting_by_uid_.erase(known);
}

void SchedulerFold::Fold(SnapshotChanges changes) {
  now_ = changes.now;
  position_ = std::move(changes.position);
  if (changes.whole) {
    waiting_.clear();
    waiting_by_uid_.clear();
    holders_.clear();
    nodes_.clear();
  }
  for (const std::string& uid : changes.gone) Forget(uid);
  for (JobRecord& job : changes.jobs) {
    Forget(job.uid);
    auto shared = std::make_shared<const JobRecord>(std::move(job));
    if (shared->state == JobState::kQueued) {
      waiting_.insert(shared);
      waiting_by_uid_[shared->uid] = std::move(shared);
    } else {
      holders_[shared->uid].job = std::move(shared);
    }
  }
  for (AttemptRecord& attempt : changes.attempts) {
    const auto holder = holders_.find(attempt.job_uid);
    if (holder != holders_.end()) holder->second.attempt = std::move(attempt);
  }
  for (NodeRecord& node : changes.nodes) nodes_[node.name] = std::move(node);
  FoldSlotLimits(changes);
  if (changes.leases.has_value()) FoldLeases(*std::move(changes.leases));
}

void SchedulerFold::FoldSlotLimits(const SnapshotChanges& changes) {
  if (!changes.whole && changes.slot_limits.empty()) return;
  SlotLimits limits = changes.whole ? SlotLimits() : *slot_limits_;
  for (const auto& [project, limit] : changes.slot_limits) {
    limits.erase(project);
    if (limit.has_value()) limits[project] = *limit;
  }
  if (limits != *slot_limits_) slot_limits_ = std::make_shared<const SlotLimits>(std::move(limits));
}

void SchedulerFold::FoldLeases(std::vector<LeaseState> leases) {
  std::set<std::string> present;
  for (LeaseState& lease : leases) {
    const auto node = nodes_.find(lease.node);
    if (node == nodes_.end()) continue;
    node->second.beat = lease.beat;
    node->second.report = std::move(lease.report);
    present.insert(std::move(lease.node));
  }
  std::erase_if(nodes_, [&present](const auto& node) { return present.count(node.first) == 0; });
}

std::shared_ptr<const JobRecord> SchedulerFold::FindWaiting(const std::string& uid) const {
  const auto found = waiting_by_uid_.find(uid);
  return found == waiting_by_uid_.end() ? nullptr : found->second;
}

SchedulerSnapshot SchedulerFold::Jobs() const {
  SchedulerSnapshot snapshot;
  snapshot.now = now_;
  snapshot.slot_limits = *slot_limits_;
  snapshot.queue = std::make_shared<const WaitingJobs>(waiting_.begin(), waiting_.end());
  for (const auto& [uid, holder] : holders_) {
    snapshot.jobs.push_back(*holder.job);
    snapshot.attempts.push_back(holder.attempt);
  }
  return snapshot;
}

}  // namespace trainyard
