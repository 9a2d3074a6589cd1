#include "server/scheduler/waiting_queue.h"

#include <algorithm>
#include <utility>

namespace trainyard {

void WaitingQueue::AddToClass(const std::shared_ptr<const JobRecord>& job) {
  classes_[ClassOf(*job, *limits_)][job->reason].insert(job);
}

// Every job that was put back after a failure has an end of its backoff: SetTime sorts out those
// for which it is over.
void WaitingQueue::Add(const std::shared_ptr<const JobRecord>& job) {
  if (job->not_before == absl::InfinitePast()) {
    AddToClass(job);
    return;
  }
  backoffs_.emplace(job->not_before, job);
  if (ReasonForBackoff(*job) != job->reason) untold_backoffs_.insert(job);
}

void WaitingQueue::Remove(const std::shared_ptr<const JobRecord>& job) {
  untold_backoffs_.erase(job);
  if (backoffs_.erase({job->not_before, job}) > 0) return;
  const auto of_class = classes_.find(ClassOf(*job, *limits_));
  if (of_class == classes_.end()) return;
  const auto of_reason = of_class->second.find(job->reason);
  if (of_reason == of_class->second.end()) return;
  of_reason->second.erase(job);
  if (!of_reason->second.empty()) return;
  of_class->second.erase(of_reason);
  if (of_class->second.empty()) classes_.erase(of_class);
}

void WaitingQueue::Clear() {
  classes_.clear();
  backoffs_.clear();
  untold_backoffs_.clear();
}

void WaitingQueue::SetLimits(std::shared_ptr<const SlotLimits> limits) {
  if (limits == limits_) return;
  const auto same_project = [](const auto& a, const auto& b) { return a.first == b.first; };
  const bool same_projects =
      std::equal(limits->begin(), limits->end(), limits_->begin(), limits_->end(), same_project);
  limits_ = std::move(limits);
  if (same_projects) return;
  const std::map<DemandClass, JobsByReason> before = std::move(classes_);
  classes_.clear();
  for (const auto& [demand, by_reason] : before) {
    for (const auto& [reason, jobs] : by_reason) {
      for (const auto& job : jobs) AddToClass(job);
    }
  }
}

void WaitingQueue::SetTime(absl::Time now) {
  if (now < now_) BeginBackoffsAfter(now);
  now_ = now;
  while (!backoffs_.empty() && backoffs_.begin()->first <= now) {
    const std::shared_ptr<const JobRecord> job = backoffs_.begin()->second;
    backoffs_.erase(backoffs_.begin());
    untold_backoffs_.erase(job);
    AddToClass(job);
  }
}

void WaitingQueue::BeginBackoffsAfter(absl::Time now) {
  JobsInOrder again;
  for (const auto& [demand, by_reason] : classes_) {
    for (const auto& [reason, jobs] : by_reason) {
      for (const auto& job : jobs) {
        if (job->not_before > now) again.insert(job);
      }
    }
  }
  for (const auto& job : again) {
    Remove(job);
    Add(job);
  }
}

absl::Time WaitingQueue::next_backoff_end() const {
  return backoffs_.empty() ? absl::InfiniteFuture() : backoffs_.begin()->first;
}

}  // namespace trainyard
