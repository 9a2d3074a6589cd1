#include "server/scheduler/planner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/slots.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

// Jobs of one demand are served alike: once one of them waits in a pass, in which slots are only
// taken, all behind it wait, for the same reason.
using DemandClass = std::tuple<int, int64_t, absl::string_view>;  // of the job's device

DemandClass ClassOf(const JobRecord& job) {
  return {std::max(1, job.min_slots), job.bytes_per_slot, job.device};
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

Reason ReasonForNoFit(const SlotTable& slots, const SlotDemand& demand) {
  if (slots.nodes() == 0) {
    return {reason::kNoNodes,
            absl::StrCat("needs ", DescribeDemand(demand), "; no node takes work")};
  }
  return {reason::kFitsNoNode, absl::StrCat("needs ", DescribeDemand(demand),
                                            "; the nodes that take work cannot hold it")};
}

Reason ReasonForWait(const SlotTable& slots, const SlotDemand& demand) {
  const bool only_kept = slots.Count(demand).free >= demand.count;
  if (only_kept) {
    return {reason::kBehindOthers, absl::StrCat("needs ", DescribeDemand(demand),
                                                "; what is free is kept for jobs ahead")};
  }
  return {reason::kWaitingForSlots,
          absl::StrCat("needs ", DescribeDemand(demand), "; too few such slots are free")};
}

// The same two at this moment, with what there is and who is ahead.
std::string DescribeNoFit(const SlotTable& slots, const SlotDemand& demand,
                          const SchedulerSnapshot& snapshot) {
  std::string aside;
  if (slots.draining() > 0) absl::StrAppend(&aside, "; ", slots.draining(), " draining");
  if (slots.away() > 0) absl::StrAppend(&aside, "; ", slots.away(), " away");
  for (const NodeRecord& node : snapshot.nodes) {
    const std::string why = node.reachable ? CordonReason(node) : "";
    if (why.empty()) continue;
    absl::StrAppend(&aside, "; ", slots.cordoned(), " cordoned: nodes/", node.name, ", ", why);
    break;
  }
  if (slots.nodes() == 0) {
    return absl::StrCat("needs ", DescribeDemand(demand), "; of ", snapshot.nodes.size(),
                        snapshot.nodes.size() == 1 ? " node" : " nodes", " none takes work", aside);
  }
  return absl::StrCat("needs ", DescribeDemand(demand), "; present are ", slots.DescribePresent(),
                      " on ", slots.nodes(), slots.nodes() == 1 ? " node" : " nodes", aside);
}

std::string DescribeWait(const SlotTable& slots, const SlotDemand& demand,
                         const std::vector<const JobRecord*>& ahead) {
  const SlotTable::Counts counts = slots.Count(demand);
  std::string message = absl::StrCat("needs ", DescribeDemand(demand), "; ", counts.free, " of ",
                                     counts.present, counts.free == 1 ? " is" : " are", " free");
  if (counts.kept > 0) absl::StrAppend(&message, ", ", counts.kept, " kept for jobs ahead");
  if (ahead.empty()) return message;
  absl::StrAppend(&message, "; behind ", JobNameOf(*ahead.front()), " (priority ",
                  ahead.front()->priority, ")");
  if (ahead.size() > 1) absl::StrAppend(&message, " and ", ahead.size() - 1, " more");
  return message;
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
      pass.decisions.lost_nodes.push_back({node.name, node.beat});
    } else {
      pass.next = std::min(pass.next, lost_at);
    }
  }
}

// A rank that has not begun on a node that is cordoned may never begin: nothing is lost by placing
// its job elsewhere, and without grace, for there is nothing to save.
void LeaveCordoned(const JobRecord& job, const std::vector<RankRecord>& ranks,
                   const std::map<std::string, std::string>& cordoned, Pass& pass) {
  if (job.state != JobState::kStarting) return;
  for (const RankRecord& rank : ranks) {
    const auto node = cordoned.find(rank.node);
    if (rank.state != RankState::kAssigned || node == cordoned.end()) continue;
    pass.decisions.suspensions.push_back(
        {.job_uid = job.uid,
         .job_version = job.version,
         .cause = SuspendCause::kDrained,
         .reason = {reason::kNodeCordoned, absl::StrCat("nodes/", rank.node, ": ", node->second,
                                                        "; the job goes elsewhere")}});
    return;
  }
}

// Moves jobs away from draining nodes, and sees to suspensions that take too long.
void LookAtRunning(const SchedulerSnapshot& snapshot, const PlannerOptions& options, Pass& pass) {
  std::set<std::string> draining;
  std::map<std::string, std::string> cordoned;  // by name: why
  for (const NodeRecord& node : snapshot.nodes) {
    if (node.draining) draining.insert(node.name);
    if (const std::string why = CordonReason(node); !why.empty()) cordoned[node.name] = why;
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
    if (on_draining == ranks.end()) {
      LeaveCordoned(job, ranks, cordoned, pass);
      continue;
    }
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

// The jobs that wait, one after the other.
class Queue {
 public:
  Queue(const SchedulerSnapshot& snapshot, const PlannerOptions& options, Pass& pass)
      : snapshot_(snapshot), options_(options), pass_(pass), slots_(snapshot) {}

  // Gives `job` its slots or a reason.
  void Consider(const JobRecord& job) {
    const auto waiting = waiting_.find(ClassOf(job));
    if (waiting != waiting_.end() && job.not_before <= snapshot_.now) {
      if (waiting->second.reason != job.reason) Tell(job, waiting->second.reason);
      if (!options_.list_queue) return;
      pass_.queue.push_back(
          {.uid = job.uid, .blocks = waiting->second.blocks, .reason = waiting->second.reason});
      return;
    }
    QueuedJob entry{.uid = job.uid};
    const SlotDemand demand = DemandOf(job);
    if (job.not_before > snapshot_.now) {
      pass_.next = std::min(pass_.next, job.not_before);
      entry.reason = ReasonForBackoff(job);
      if (slots_.Find(demand).has_value()) entry.earliest_start = job.not_before;
    } else if (!slots_.CouldHold(demand)) {
      entry.reason = ReasonForNoFit(slots_, demand);
      waiting_[ClassOf(job)] = {entry.reason, false};
    } else if (auto ranks = slots_.Find(demand); ranks.has_value()) {
      Place(job, *std::move(ranks), entry);
    } else {
      entry.reason = ReasonForWait(slots_, demand);
      entry.blocks = true;
      waiting_[ClassOf(job)] = {entry.reason, true};
      slots_.Keep(demand);
    }
    if (!entry.placed && entry.reason != job.reason) Tell(job, entry.reason);
    if (options_.list_queue) pass_.queue.push_back(std::move(entry));
  }

  // Whether the pass has decided as much as it may.
  bool full() const { return pass_.decisions.placements.size() >= options_.most_placements; }

  const SlotTable& slots() const { return slots_; }

 private:
  struct Waiting {
    Reason reason;
    bool blocks = false;
  };

  void Place(const JobRecord& job, std::vector<Placement::Rank> ranks, QueuedJob& entry) {
    slots_.Take(ranks);
    entry.placed = true;
    entry.reason = ReasonForPlacement(ranks);
    entry.earliest_start = snapshot_.now;
    pass_.decisions.placements.push_back({.job_uid = job.uid,
                                          .job_version = job.version,
                                          .ranks = std::move(ranks),
                                          .reason = entry.reason});
  }

  void Tell(const JobRecord& job, const Reason& reason) {
    if (pass_.decisions.reasons.size() >= options_.most_reasons) {
      pass_.next = snapshot_.now;
      return;
    }
    pass_.decisions.reasons.push_back(
        {.job_uid = job.uid, .job_version = job.version, .reason = reason});
  }

  const SchedulerSnapshot& snapshot_;
  const PlannerOptions& options_;
  Pass& pass_;
  SlotTable slots_;
  std::map<DemandClass, Waiting> waiting_;
};

}  // namespace

std::string JobNameOf(const JobRecord& job) {
  return absl::StrCat("projects/", job.project, "/jobs/", job.job_id);
}

Pass PlanPass(const SchedulerSnapshot& snapshot, const PlannerOptions& options) {
  Pass pass;
  LookForLostNodes(snapshot, options, pass);
  LookAtRunning(snapshot, options, pass);

  Queue queue(snapshot, options, pass);
  for (const JobRecord* job : WaitingJobsOf(snapshot)) {
    if (queue.full()) {
      pass.next = snapshot.now;
      break;
    }
    queue.Consider(*job);
  }
  return pass;
}

Description Describe(const SchedulerSnapshot& snapshot, const PlannerOptions& options,
                     const std::string& uid) {
  PlannerOptions whole = options;
  whole.most_placements = SIZE_MAX;
  whole.list_queue = true;
  Pass pass;
  Queue queue(snapshot, whole, pass);
  std::vector<const JobRecord*> blocking;
  for (const JobRecord* job : WaitingJobsOf(snapshot)) {
    const bool wanted = job->uid == uid;
    std::optional<SlotTable> before;
    if (wanted) before = queue.slots();
    queue.Consider(*job);
    const QueuedJob& entry = pass.queue.back();
    if (!wanted) {
      if (entry.blocks) blocking.push_back(job);
      continue;
    }
    const SlotDemand demand = DemandOf(*job);
    Description description{.reason = entry.reason,
                            .queue_position = static_cast<int>(pass.queue.size()),
                            .earliest_start = entry.earliest_start};
    const std::string& code = entry.reason.code;
    if (code == reason::kNoNodes || code == reason::kFitsNoNode) {
      description.reason.message = DescribeNoFit(*before, demand, snapshot);
    } else if (entry.blocks) {
      std::vector<const JobRecord*> ahead;
      for (const JobRecord* other : blocking) {
        if (Compete(DemandOf(*other), demand)) ahead.push_back(other);
      }
      description.reason.message = DescribeWait(*before, demand, ahead);
      for (size_t i = 0; i < std::min(ahead.size(), kMostAhead); ++i) {
        description.ahead.push_back(JobNameOf(*ahead[i]));
      }
    }
    return description;
  }
  return {};
}

}  // namespace trainyard
