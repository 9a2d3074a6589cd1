#pragma once

// The steps of a pass, for the planner that looks at a whole snapshot and for the one that folds
// changes. Pure.

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "server/scheduler/planner.h"
#include "server/scheduler/slot_limits.h"
#include "server/scheduler/slots.h"

namespace trainyard {

// What decides whether a job can be placed: slots, bytes of each, device, the node that the job
// stays away from (AvoidedBy), whether its slots may be mixed, the fingerprint that they must have,
// and its project, if that has a limit. Jobs of one class are served alike: a pass only takes
// slots, so once one of them waits, all behind it wait, for the same reason.
enum class Mixing { kNever, kIfNeeded, kAlways };
using DemandClass =
    std::tuple<int, int64_t, std::string, std::string, Mixing, std::string, std::string>;
DemandClass ClassOf(const JobRecord& job, const SlotLimits& limits);

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

// Decides everything but what becomes of the queue: looks for lost nodes and at health, moves jobs
// away from draining nodes and, if they have not begun, from cordoned ones; sees to suspensions
// that take too long, and to cancelled jobs that have waited long enough for lost ranks.
//
// False: the queue is left to the next pass, which then follows at once, because a loss is charged.
// A charge moves the version of its job, so that a placement of the same pass would be refused, and
// its slots would go to jobs behind it.
bool LookAtCluster(const Cluster& cluster, const PlannerOptions& options, Pass& pass);

// What became of a reason that a job might be told.
enum class Told { kYes, kTooYoung, kEnough };

// Has the reason of a waiting job written, whatever reason it was submitted with. kTooYoung: the
// job is too young for that, as one in backoff never is, and the pass remembers when it will not
// be. kEnough: the pass writes no more.
Told Tell(const JobRecord& job, const Reason& reason, absl::Time now, const PlannerOptions& options,
          Pass& pass);

// The code of the reason that jobs of a class keep although its first job waits for `reason`; "":
// none. Of a project with a limit the first waits for the limit, for slots, and for the limit
// again, as often as one of its jobs ends. Those behind wait for it in any case, and telling each
// of a long queue anew would stop the yard.
const char* KeptBehind(const DemandClass& demand, const Reason& reason);

// Why a job waits, as it is stored.
Reason ReasonForBackoff(const JobRecord& job);
Reason ReasonForNoFit(const SlotTable& slots, const SlotDemand& demand);
Reason ReasonForWait(const SlotTable& slots, const SlotDemand& demand);

Reason ReasonForPlacement(const std::vector<Placement::Rank>& ranks, const JobRecord& job);

}  // namespace trainyard
