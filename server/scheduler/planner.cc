#include "server/scheduler/planner.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/slots.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

// Waiting jobs that keep their slots, in order.
struct Blocker {
  std::string name;
  int priority = 0;
  SlotDemand demand;
};

bool RunsBefore(const JobRecord* a, const JobRecord* b) {
  return std::make_tuple(-static_cast<int64_t>(a->priority), a->create_time, a->uid) <
         std::make_tuple(-static_cast<int64_t>(b->priority), b->create_time, b->uid);
}

// Whether a slot could serve both: only then can one keep a slot from the other.
bool Compete(const SlotDemand& a, const SlotDemand& b) {
  return a.device.empty() || b.device.empty() || a.device == b.device;
}

Reason ReasonForBackoff(const JobRecord& job) {
  std::string message =
      absl::StrCat("restart ", job.restarts, " of at most ", job.max_restarts, " may begin at ",
                   absl::FormatTime(absl::RFC3339_sec, job.not_before, absl::UTCTimeZone()));
  if (job.failure.has_value()) absl::StrAppend(&message, "; last failure: ", job.failure->message);
  return {reason::kBackoff, message};
}

Reason ReasonForNoFit(const SlotTable& slots, const SlotDemand& demand,
                      const SchedulerSnapshot& snapshot) {
  std::string aside;
  if (slots.draining() > 0) absl::StrAppend(&aside, "; ", slots.draining(), " draining");
  if (slots.away() > 0) absl::StrAppend(&aside, "; ", slots.away(), " away");
  if (slots.nodes() == 0) {
    return {
        reason::kNoNodes,
        absl::StrCat("needs ", DescribeDemand(demand), "; of ", snapshot.nodes.size(),
                     snapshot.nodes.size() == 1 ? " node" : " nodes", " none takes work", aside)};
  }
  return {reason::kFitsNoNode,
          absl::StrCat("needs ", DescribeDemand(demand), "; present are ", slots.DescribePresent(),
                       " on ", slots.nodes(), slots.nodes() == 1 ? " node" : " nodes", aside)};
}

// The waiting jobs ahead of `demand` that could use what it could.
struct Ahead {
  const Blocker* first = nullptr;
  size_t count = 0;
  std::vector<std::string> names;  // at most kMostAhead
};

Ahead FindAhead(const std::vector<Blocker>& blockers, const SlotDemand& demand) {
  Ahead ahead;
  for (const Blocker& blocker : blockers) {
    if (!Compete(blocker.demand, demand)) continue;
    if (ahead.first == nullptr) ahead.first = &blocker;
    if (ahead.count++ < kMostAhead) ahead.names.push_back(blocker.name);
  }
  return ahead;
}

Reason ReasonForWait(const SlotTable& slots, const SlotDemand& demand, const Ahead& ahead) {
  const SlotTable::Counts counts = slots.Count(demand);
  std::string message = absl::StrCat("needs ", DescribeDemand(demand), "; ", counts.free, " of ",
                                     counts.present, counts.free == 1 ? " is" : " are", " free");
  if (counts.kept > 0) absl::StrAppend(&message, ", ", counts.kept, " kept for jobs ahead");
  if (ahead.first != nullptr) {
    absl::StrAppend(&message, "; behind ", ahead.first->name, " (priority ", ahead.first->priority,
                    ")");
    if (ahead.count > 1) absl::StrAppend(&message, " and ", ahead.count - 1, " more");
  }
  const bool only_kept = counts.free >= demand.count;
  return {only_kept ? reason::kBehindOthers : reason::kWaitingForSlots, std::move(message)};
}

Reason ReasonForPlacement(const std::vector<Placement::Rank>& ranks) {
  std::vector<std::string> nodes;
  for (const Placement::Rank& rank : ranks) {
    if (nodes.empty() || nodes.back() != rank.node) nodes.push_back(rank.node);
  }
  return {reason::kPlaced, absl::StrCat(ranks.size(), ranks.size() == 1 ? " slot" : " slots",
                                        " on ", absl::StrJoin(nodes, ", "))};
}

void LookForLostNodes(const SchedulerSnapshot& snapshot, const PlannerOptions& options,
                      Pass& pass) {
  for (const NodeRecord& node : snapshot.nodes) {
    if (!node.reachable) continue;
    const absl::Time lost_at = node.lease_end + options.lease_margin;
    if (lost_at <= snapshot.now) {
      pass.decisions.lost_nodes.push_back(node.name);
    } else {
      pass.next = std::min(pass.next, lost_at);
    }
  }
}

// Moves jobs away from draining nodes, and sees to suspensions that take too long.
void LookAtRunning(const SchedulerSnapshot& snapshot, const PlannerOptions& options, Pass& pass) {
  std::set<std::string> draining;
  for (const NodeRecord& node : snapshot.nodes) {
    if (node.draining) draining.insert(node.name);
  }
  std::map<std::string, const AttemptRecord*> attempts;  // newest by job
  for (const AttemptRecord& attempt : snapshot.attempts) attempts[attempt.job_uid] = &attempt;
  for (const JobRecord& job : snapshot.jobs) {
    if (job.state == JobState::kSuspending) {
      if (job.suspend_deadline <= snapshot.now) {
        pass.suspension_overdue = true;
      } else {
        pass.next = std::min(pass.next, job.suspend_deadline);
      }
    }
    if (job.state != JobState::kStarting && job.state != JobState::kRunning) continue;
    const auto found = attempts.find(job.uid);
    if (found == attempts.end()) continue;
    const std::vector<RankRecord>& ranks = found->second->ranks;
    const auto on_draining = std::find_if(ranks.begin(), ranks.end(), [&](const RankRecord& rank) {
      return rank.state != RankState::kGone && draining.count(rank.node) > 0;
    });
    if (on_draining == ranks.end()) continue;
    pass.decisions.suspensions.push_back(
        {.job_uid = job.uid,
         .job_version = job.version,
         .cause = SuspendCause::kDrained,
         .reason = {reason::kNodeDrained,
                    absl::StrCat("nodes/", on_draining->node,
                                 " is drained: writes a checkpoint, then back to the queue")},
         .grace = options.drain_grace});
  }
}

// Gives `job` its slots or a reason.
void Consider(const JobRecord& job, const SchedulerSnapshot& snapshot, SlotTable& slots,
              std::vector<Blocker>& blockers, Pass& pass) {
  QueuedJob entry{.uid = job.uid, .name = JobNameOf(job)};
  const SlotDemand demand = DemandOf(job);
  if (job.not_before > snapshot.now) {
    pass.next = std::min(pass.next, job.not_before);
    entry.reason = ReasonForBackoff(job);
    if (slots.Find(demand).has_value()) entry.earliest_start = job.not_before;
  } else if (!slots.CouldHold(demand)) {
    entry.reason = ReasonForNoFit(slots, demand, snapshot);
  } else if (auto ranks = slots.Find(demand); ranks.has_value()) {
    slots.Take(*ranks);
    entry.placed = true;
    entry.reason = ReasonForPlacement(*ranks);
    entry.earliest_start = snapshot.now;
    pass.decisions.placements.push_back({.job_uid = job.uid,
                                         .job_version = job.version,
                                         .ranks = *std::move(ranks),
                                         .reason = entry.reason});
  } else {
    Ahead ahead = FindAhead(blockers, demand);
    entry.reason = ReasonForWait(slots, demand, ahead);
    entry.ahead = std::move(ahead.names);
    slots.Keep(demand);
    blockers.push_back({entry.name, job.priority, demand});
  }
  if (!entry.placed && entry.reason != job.reason) {
    pass.decisions.reasons.push_back(
        {.job_uid = job.uid, .job_version = job.version, .reason = entry.reason});
  }
  pass.queue.push_back(std::move(entry));
}

}  // namespace

std::string JobNameOf(const JobRecord& job) {
  return absl::StrCat("projects/", job.project, "/jobs/", job.job_id);
}

Pass PlanPass(const SchedulerSnapshot& snapshot, const PlannerOptions& options) {
  Pass pass;
  LookForLostNodes(snapshot, options, pass);
  LookAtRunning(snapshot, options, pass);

  std::vector<const JobRecord*> waiting;
  for (const JobRecord& job : snapshot.jobs) {
    if (job.state == JobState::kQueued) waiting.push_back(&job);
  }
  std::sort(waiting.begin(), waiting.end(), RunsBefore);
  SlotTable slots(snapshot);
  std::vector<Blocker> blockers;
  for (const JobRecord* job : waiting) Consider(*job, snapshot, slots, blockers, pass);
  return pass;
}

}  // namespace trainyard
