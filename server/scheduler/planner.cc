#include "server/scheduler/planner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/elastic.h"
#include "server/scheduler/explain_arithmetic.h"
#include "server/scheduler/health.h"
#include "server/scheduler/pass_steps.h"
#include "server/scheduler/slot_limits.h"
#include "server/scheduler/slots.h"
#include "storage/job_store.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

// Whether a slot could serve both: only then can one keep a slot from the other.
bool Compete(const SlotDemand& a, const SlotDemand& b) {
  return a.device.empty() || b.device.empty() || a.device == b.device;
}

// DescribeNoFit and DescribeWait say what ReasonForNoFit and ReasonForWait do, as of this moment:
// with the slots that there are and the jobs ahead.
std::string DescribeNoFit(const SlotTable& slots, const SlotDemand& demand,
                          const SchedulerSnapshot& snapshot) {
  std::string aside;
  if (slots.draining() > 0) absl::StrAppend(&aside, "; ", slots.draining(), " draining or leaving");
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
                      " on ", slots.nodes(), slots.nodes() == 1 ? " node" : " nodes", aside,
                      DescribeArithmetic(slots, demand));
}

std::string DescribeWait(const SlotTable& slots, const SlotDemand& demand,
                         const std::vector<const JobRecord*>& ahead) {
  const SlotTable::Counts counts = slots.Count(demand);
  std::string message = absl::StrCat("needs ", DescribeDemand(demand), "; ", counts.free, " of ",
                                     counts.present, counts.free == 1 ? " is" : " are", " free");
  if (counts.kept > 0) absl::StrAppend(&message, ", ", counts.kept, " kept for jobs ahead");
  absl::StrAppend(&message, DescribeArithmetic(slots, demand));
  if (ahead.empty()) return message;
  const JobRecord& first = *ahead.front();
  absl::StrAppend(&message, "; behind ", FormatJobName({first.project, first.job_id}),
                  " (priority ", first.priority, ")");
  if (ahead.size() > 1) absl::StrAppend(&message, " and ", ahead.size() - 1, " more");
  return message;
}

// `held`: by jobs of its project that run, or wait ahead of it.
std::string DescribeLimit(const JobRecord& job, const SlotDemand& demand, int held, int limit) {
  const std::string text = absl::StrCat("needs ", DescribeDemand(demand), "; jobs of projects/",
                                        job.project, " may hold ", limit, " together");
  if (demand.count > limit) return text;
  return absl::StrCat(text, ", and hold ", std::min(held, limit), " or wait for them ahead of it");
}

// The jobs that wait, one after the other.
class Queue {
 public:
  Queue(const SchedulerSnapshot& snapshot, const Cluster& cluster, const PlannerOptions& options,
        Pass& pass)
      : snapshot_(snapshot),
        options_(options),
        pass_(pass),
        slots_(TakingWork(snapshot, pass)),
        held_(snapshot),
        ledger_(snapshot.slot_limits, held_),
        elastic_(cluster, options, slots_, ledger_, pass) {}

  // Gives `job` its slots or a reason.
  void Consider(const JobRecord& job) {
    if (elastic_.Placed(job)) {
      pass_.queue.push_back({.uid = job.uid, .placed = true, .reason = job.reason});
      return;
    }
    const DemandClass of_job = ClassOf(job, snapshot_.slot_limits);
    const auto waiting = waiting_.find(of_job);
    if (waiting != waiting_.end() && job.not_before <= snapshot_.now) {
      if (job.reason.code != KeptBehind(of_job, waiting->second.reason)) {
        TellIfNew(job, waiting->second.reason);
      }
      pass_.queue.push_back(
          {.uid = job.uid, .blocks = waiting->second.blocks, .reason = waiting->second.reason});
      return;
    }
    QueuedJob entry{.uid = job.uid};
    const SlotDemand demand = slots_.DemandOf(job);
    const int left = ledger_.Left(job);
    if (job.not_before > snapshot_.now) {
      pass_.next = std::min(pass_.next, job.not_before);
      entry.reason = ReasonForBackoff(job);
      if (slots_.Find(demand).has_value() && demand.count <= left) {
        entry.earliest_start = job.not_before;
      }
    } else if (!slots_.CouldHold(demand)) {
      entry.reason = ReasonForNoFit(slots_, demand);
      waiting_[of_job] = {entry.reason, false};
    } else if (std::optional<Reason> limited = ledger_.WaitsFor(job, demand)) {
      entry.reason = *std::move(limited);
      const int missing = demand.count - left;
      entry.awaited = demand.count <= ledger_.Limit(job) && elastic_.MakeRoomInLimit(job, missing);
      if (!entry.awaited) waiting_[of_job] = {entry.reason, false};
    } else if (auto ranks = slots_.Find(demand); ranks.has_value()) {
      Place(job, *std::move(ranks), entry);
    } else {
      entry.reason = ReasonForWait(slots_, demand);
      entry.blocks = true;
      slots_.Keep(demand);
      ledger_.Take(job, demand.count);
      entry.awaited = elastic_.MakeRoom(job);
      if (!entry.awaited) waiting_[of_job] = {entry.reason, true};
    }
    if (!entry.placed) TellIfNew(job, entry.reason);
    pass_.queue.push_back(std::move(entry));
  }

  // Once every job was considered.
  void Finish() { elastic_.GiveOut(); }

  // Whether the pass has decided as much as it may.
  bool full() const { return pass_.decisions.placements.size() >= options_.most_placements; }

  const SlotTable& slots() const { return slots_; }
  const SlotLedger& ledger() const { return ledger_; }

 private:
  struct Waiting {
    Reason reason;
    bool blocks = false;
  };

  static SlotTable TakingWork(const SchedulerSnapshot& snapshot, const Pass& pass) {
    SlotTable slots(snapshot);
    for (const NodeCordon& cordon : pass.decisions.cordons) slots.SetAside(cordon.name);
    return slots;
  }

  void Place(const JobRecord& job, std::vector<Placement::Rank> ranks, QueuedJob& entry) {
    slots_.Take(ranks);
    ledger_.Take(job, SlotsIn(ranks));
    entry.placed = true;
    entry.reason = ReasonForPlacement(ranks, job);
    entry.earliest_start = snapshot_.now;
    pass_.decisions.placements.push_back({.job_uid = job.uid,
                                          .job_version = job.version,
                                          .ranks = std::move(ranks),
                                          .reason = entry.reason});
    elastic_.Took(job, pass_.decisions.placements.back().ranks);
  }

  void TellIfNew(const JobRecord& job, const Reason& reason) {
    if (reason != job.reason) Tell(job, reason, snapshot_.now, options_, pass_);
  }

  const SchedulerSnapshot& snapshot_;
  const PlannerOptions& options_;
  Pass& pass_;
  SlotTable slots_;
  const ProjectSlots held_;
  SlotLedger ledger_;
  Elastic elastic_;
  std::map<DemandClass, Waiting> waiting_;
};

}  // namespace

Pass PlanPass(const SchedulerSnapshot& snapshot, const PlannerOptions& options) {
  Pass pass;
  const Cluster cluster = ClusterOf(snapshot);
  if (!LookAtCluster(cluster, options, pass)) return pass;

  Queue queue(snapshot, cluster, options, pass);
  for (const JobRecord* job : WaitingJobsOf(snapshot)) {
    if (queue.full()) {
      pass.next = snapshot.now;
      return pass;
    }
    queue.Consider(*job);
  }
  queue.Finish();
  return pass;
}

Description Describe(const SchedulerSnapshot& snapshot, const PlannerOptions& options,
                     const std::string& uid, const SpecChanges& changes) {
  PlannerOptions whole = options;
  whole.most_placements = SIZE_MAX;
  Pass pass;
  Queue queue(snapshot, ClusterOf(snapshot), whole, pass);
  std::vector<const JobRecord*> blocking;
  for (const JobRecord* job : WaitingJobsOf(snapshot)) {
    const bool wanted = job->uid == uid;
    std::optional<SlotTable> before;
    if (wanted) before = queue.slots();
    const int held = queue.ledger().Held(*job);
    queue.Consider(*job);
    const QueuedJob& entry = pass.queue.back();
    if (!wanted) {
      if (entry.blocks) blocking.push_back(job);
      continue;
    }
    const SlotDemand demand = before->DemandOf(*job);
    Description description{.reason = entry.reason,
                            .queue_position = static_cast<int>(pass.queue.size()),
                            .earliest_start = entry.earliest_start};
    const std::string& code = entry.reason.code;
    if (!entry.placed) {
      description.smaller = FindSmallerGang(*before, demand, changes);
      description.mixed_starts =
          code != reason::kProjectLimit && before->Find(OfAnyArithmetic(demand)).has_value();
    }
    if (code == reason::kNoNodes || code == reason::kFitsNoNode) {
      description.reason.message = DescribeNoFit(*before, demand, snapshot);
    } else if (code == reason::kProjectLimit) {
      description.reason.message = DescribeLimit(*job, demand, held, queue.ledger().Limit(*job));
      if (entry.awaited) {
        absl::StrAppend(
            &description.reason.message,
            "; what it needs comes free as jobs of its project leave or get fewer slots");
      }
    } else if (entry.blocks) {
      std::vector<const JobRecord*> ahead;
      for (const JobRecord* other : blocking) {
        if (Compete(WholeDemandOf(*other), demand)) ahead.push_back(other);
      }
      description.reason.message = DescribeWait(*before, demand, ahead);
      if (entry.awaited) {
        absl::StrAppend(&description.reason.message,
                        "; what it needs comes free as running jobs leave or get fewer slots");
      }
      for (size_t i = 0; i < std::min(ahead.size(), kMostAhead); ++i) {
        description.ahead.push_back(FormatJobName({ahead[i]->project, ahead[i]->job_id}));
      }
    }
    return description;
  }
  return {};
}

}  // namespace trainyard
