#pragma once

// The steps of a pass, for the planner that looks at a whole snapshot and for the one that folds
// changes. Pure.

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "server/scheduler/planner.h"
#include "server/scheduler/slots.h"

namespace trainyard {

// Jobs of one demand are served alike: once one of them waits in a pass, in which slots are only
// taken, all behind it wait, for the same reason.
// Slots, bytes of each, device, and the node that the job stays away from.
using DemandClass = std::tuple<int, int64_t, std::string, std::string>;
DemandClass ClassOf(const JobRecord& job);

// A job that holds slots, with its newest attempt; null: none is known.
struct RunningJob {
  const JobRecord* job = nullptr;
  const AttemptRecord* attempt = nullptr;
};

// What a pass looks at beside the jobs that wait. Borrows.
struct Cluster {
  absl::Time now;
  std::vector<const NodeRecord*> nodes;
  std::vector<RunningJob> running;
  // Any job that waits or holds slots; null: there is none with this uid.
  std::function<const JobRecord*(const std::string& uid)> find_job;
};
Cluster ClusterOf(const SchedulerSnapshot& snapshot);

void LookForLostNodes(const Cluster& cluster, const PlannerOptions& options, Pass& pass);

// Moves jobs away from draining nodes, and sees to suspensions that take too long.
void LookAtRunning(const Cluster& cluster, const PlannerOptions& options, Pass& pass);

// Until when a job is not told why it waits; the past: it may be told.
absl::Time UntoldUntil(const JobRecord& job, absl::Time now, const PlannerOptions& options);

// Why a job waits, as it is stored.
Reason ReasonForBackoff(const JobRecord& job);
Reason ReasonForNoFit(const SlotTable& slots, const SlotDemand& demand);
Reason ReasonForWait(const SlotTable& slots, const SlotDemand& demand);

Reason ReasonForPlacement(const std::vector<Placement::Rank>& ranks, const JobRecord& job);

}  // namespace trainyard
