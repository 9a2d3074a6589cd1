#pragma once

// The jobs that wait, by demand and stored reason, so that a pass looks at the first of each demand
// and at those whose reason is to be told, and not at the whole queue. Pure; not thread-safe.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "server/scheduler/pass_steps.h"
#include "storage/scheduler_fold.h"

namespace trainyard {

struct ReasonOrder {
  bool operator()(const Reason& a, const Reason& b) const {
    return std::tie(a.code, a.message) < std::tie(b.code, b.message);
  }
};

class WaitingQueue {
 public:
  using JobsByReason = std::map<Reason, JobsInOrder, ReasonOrder>;  // by what is stored

  void Add(const std::shared_ptr<const JobRecord>& job);
  void Remove(const std::shared_ptr<const JobRecord>& job);  // as it was added
  void Clear();

  // Jobs of a project that has a limit now, or has none any more, are of another class: if there is
  // any such project, at the cost of one look at every job.
  void SetLimits(std::shared_ptr<const SlotLimits> limits);

  // Sets the store's time, by which backoffs end: jobs whose backoff is over wait like any other.
  // If the clock was set back, backoffs begin again, at the cost of one look at every job.
  void SetTime(absl::Time now);

  // Jobs that wait, by demand and then by reason; no part is empty.
  const std::map<DemandClass, JobsByReason>& classes() const { return classes_; }

  // Jobs in backoff whose stored reason does not say so yet.
  const JobsInOrder& untold_backoffs() const { return untold_backoffs_; }
  absl::Time next_backoff_end() const;

 private:
  void AddToClass(const std::shared_ptr<const JobRecord>& job);
  void BeginBackoffsAfter(absl::Time now);

  absl::Time now_ = absl::InfinitePast();
  std::shared_ptr<const SlotLimits> limits_ = std::make_shared<const SlotLimits>();
  std::map<DemandClass, JobsByReason> classes_;
  std::set<std::pair<absl::Time, std::shared_ptr<const JobRecord>>> backoffs_;  // by their end
  JobsInOrder untold_backoffs_;
};

}  // namespace trainyard
