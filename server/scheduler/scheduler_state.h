#pragma once

// What the leader knows, kept from pass to pass: a fold of changes. Pure; not thread-safe.
//
// Plan decides what PlanPass decides of the same snapshot (a test compares), at a cost that grows
// with what changed and with the kinds of demands and slots, not with the length of the queue.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/scheduler/lease_judge.h"
#include "server/scheduler/pass_steps.h"
#include "server/scheduler/planner.h"
#include "server/scheduler/slot_limits.h"
#include "server/scheduler/slots.h"
#include "server/scheduler/start_judge.h"
#include "server/scheduler/waiting_classes.h"
#include "server/scheduler/waiting_queue.h"
#include "storage/scheduler_fold.h"

namespace trainyard {

class SchedulerState {
 public:
  void Fold(SnapshotChanges changes);

  // Sets how long the leases hold, after leases were folded. `now` is that of Clock::SinceBoot.
  void Judge(LeaseJudge& judge, absl::Duration now);
  // Sets by when jobs that are STARTING must have begun.
  void Judge(StartJudge& judge, absl::Duration now);

  // Whether a node that is reachable has outlived its lease, as far as is known here.
  bool AnyLeaseIsOver() const;

  // Pass::queue stays empty.
  Pass Plan(const PlannerOptions& options);

  // Of each class that the last pass left waiting, why. Valid until changes are folded.
  const WaitingClasses& waiting() const { return waiting_; }

  absl::Time now() const { return fold_.now(); }
  const ChangePosition& position() const { return fold_.position(); }
  const SchedulerFold& fold() const { return fold_; }
  const WaitingQueue& queue() const { return queue_; }
  const HeldSlots& held() const { return held_; }
  const ProjectSlots& held_by_projects() const { return held_by_projects_; }
  // Uids of jobs that wait for what is kept for them.
  const std::set<std::string>& resized() const { return resized_; }

 private:
  void Forget(const std::string& uid);
  void Learn(const std::string& uid);
  // Takes or frees the slots of `attempt` in slots_, as held_ and its nodes say.
  void UpdateSlotsOf(const AttemptRecord& attempt);
  const SlotTable& Slots(const std::vector<const NodeRecord*>& nodes);
  Cluster ToLookAt() const;
  void NoteSpare(const std::vector<std::string>& uids);

  SchedulerFold fold_;
  WaitingQueue queue_;
  HeldSlots held_;
  ProjectSlots held_by_projects_;
  std::set<std::string> starting_, ending_;  // uids; that are STARTING; SUSPENDING or CANCELLING
  std::set<std::string> elastic_, resized_;  // likewise; as Cluster has them
  WaitingClasses waiting_;
  std::map<std::string, absl::Time> spare_since_;  // by uid: AttemptRecord::spare_since
  // The slots of the nodes that take work, and which nodes these were; empty: to be made anew.
  std::optional<SlotTable> slots_;
  std::vector<bool> take_work_;
};

}  // namespace trainyard
