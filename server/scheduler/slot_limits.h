#pragma once

// How many slots the jobs of a project hold, and may yet take. Pure.
//
// A limit holds back what is placed from now on: what runs goes on, also when the limit is lowered.
// Of a limit that is used up, as of slots, nobody behind gets what a job ahead waits for.

#include <climits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/scheduler/slot_demand.h"
#include "storage/scheduler_store.h"

namespace trainyard {

// What the jobs of each project hold, as they come and go. A gang that is being resized counts as
// what it has or will have, whichever is more.
class ProjectSlots {
 public:
  ProjectSlots() = default;
  explicit ProjectSlots(const SchedulerSnapshot& snapshot);
  void Add(const JobRecord& job, const AttemptRecord& attempt);
  void Remove(const JobRecord& job, const AttemptRecord& attempt);  // as it was added
  void Clear() { held_.clear(); }
  int HeldBy(const std::string& project) const;

 private:
  std::map<std::string, int> held_;  // no zeros
};

// What a pass gives out of the limits. Borrows both.
class SlotLedger {
 public:
  SlotLedger(const SlotLimits& limits, const ProjectSlots& held) : limits_(limits), held_(held) {}

  // Of the job's project; INT_MAX: there is none.
  int Limit(const JobRecord& job) const;
  int Held(const JobRecord& job) const;  // by its project, with what the pass gave it
  int Left(const JobRecord& job) const;  // INT_MAX: without a limit
  // The job gets so many, or waits for them in front of others.
  void Take(const JobRecord& job, int slots);

  // Why the job waits for its project's limit, whatever slots are free; nothing: it does not. If it
  // waits for what others of its project hold, nobody behind it gets any of what is left.
  std::optional<Reason> WaitsFor(const JobRecord& job, const SlotDemand& demand);

 private:
  const SlotLimits& limits_;
  const ProjectSlots& held_;
  std::map<std::string, int> taken_;  // by project
};

// The project of a job, if it has a limit; else "".
const std::string& LimitedProject(const JobRecord& job, const SlotLimits& limits);

int SlotsIn(const std::vector<RankSlots>& ranks);

}  // namespace trainyard
