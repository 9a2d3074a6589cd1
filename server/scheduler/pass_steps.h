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

// What decides whether a job can be placed: slots, bytes of each, device, the node that the job
// stays away from, whether its slots may be mixed, and the fingerprint that they must have. Jobs of
// one class are served alike: a pass only takes slots, so once one of them waits, all behind it
// wait, for the same reason.
enum class Mixing { kNever, kIfNeeded, kAlways };
using DemandClass = std::tuple<int, int64_t, std::string, std::string, Mixing, std::string>;
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
  std::vector<RunningJob> elastic;        // RUNNING, with slots that may change (IsElastic)
  std::vector<const JobRecord*> resized;  // that wait for what is kept for them, by RunsBefore
  // Any job that waits or holds slots; null: there is none with this uid.
  std::function<const JobRecord*(const std::string& uid)> find_job;
};
Cluster ClusterOf(const SchedulerSnapshot& snapshot);

void LookForLostNodes(const Cluster& cluster, const PlannerOptions& options, Pass& pass);

// Moves jobs away from draining nodes and, if they have not begun, from cordoned ones; sees to
// suspensions that take too long, and to cancelled jobs that have waited long enough for lost
// ranks.
void LookAtRunning(const Cluster& cluster, const PlannerOptions& options, Pass& pass);

// The time until which a job is too young for its reason to be written, whatever reason it was
// submitted with; a time in the past: it may be written, as it may of one in backoff.
absl::Time ReasonDueAt(const JobRecord& job, absl::Time now, const PlannerOptions& options);

// Why a job waits, as it is stored.
Reason ReasonForBackoff(const JobRecord& job);
Reason ReasonForNoFit(const SlotTable& slots, const SlotDemand& demand);
Reason ReasonForWait(const SlotTable& slots, const SlotDemand& demand);

Reason ReasonForPlacement(const std::vector<Placement::Rank>& ranks, const JobRecord& job);

}  // namespace trainyard
