#pragma once

// The jobs, attempts and nodes that the scheduler works with, kept up to date with what
// SchedulerStore::ReadChanges returns. Not thread-safe.

#include <map>
#include <memory>
#include <set>
#include <string>

#include "storage/scheduler_store.h"

namespace trainyard {

// A place in the order in which waiting jobs are served: behind all jobs of `priority` that were
// created up to and including `time`.
struct CreatedUntil {
  int priority = 0;
  absl::Time time;
};

// In the order in which jobs that wait are served.
struct ServedBefore {
  using is_transparent = void;
  bool operator()(const std::shared_ptr<const JobRecord>& a,
                  const std::shared_ptr<const JobRecord>& b) const {
    return RunsBefore(*a, *b);
  }
  bool operator()(const std::shared_ptr<const JobRecord>& a, const CreatedUntil& b) const {
    return a->priority != b.priority ? a->priority > b.priority : a->create_time <= b.time;
  }
};
using JobsInOrder = std::set<std::shared_ptr<const JobRecord>, ServedBefore>;

class SchedulerFold {
 public:
  // A job that holds slots, with its newest attempt.
  struct Holder {
    std::shared_ptr<const JobRecord> job;
    AttemptRecord attempt;
  };

  void Fold(SnapshotChanges changes);

  absl::Time now() const { return now_; }
  const ChangePosition& position() const { return position_; }
  const JobsInOrder& waiting() const { return waiting_; }
  const std::map<std::string, Holder>& holders() const { return holders_; }  // by uid of the job
  const std::map<std::string, NodeRecord>& nodes() const { return nodes_; }  // by name
  std::map<std::string, NodeRecord>& nodes() { return nodes_; }  // for whoever judges their leases

  // Never null; another one after each change.
  const std::shared_ptr<const SlotLimits>& slot_limits() const { return slot_limits_; }

  // The newest attempt of a job that holds slots, for whoever judges how long it may start.
  AttemptRecord* FindAttempt(const std::string& uid) { return &holders_.at(uid).attempt; }

  // The waiting job with this uid, as of the newest changes; null: it does not wait.
  std::shared_ptr<const JobRecord> FindWaiting(const std::string& uid) const;

  // Jobs and attempts as a snapshot has them; without nodes.
  SchedulerSnapshot Jobs() const;

 private:
  void Forget(const std::string& uid);
  void FoldSlotLimits(const SnapshotChanges& changes);
  void FoldLeases(std::vector<LeaseState> leases);

  absl::Time now_;
  ChangePosition position_;
  std::map<std::string, std::shared_ptr<const JobRecord>> waiting_by_uid_;
  JobsInOrder waiting_;
  std::map<std::string, Holder> holders_;
  std::map<std::string, NodeRecord> nodes_;
  std::shared_ptr<const SlotLimits> slot_limits_ = std::make_shared<const SlotLimits>();
};

}  // namespace trainyard
