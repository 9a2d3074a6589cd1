#include "server/scheduler/explain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/plan/spec/layout_change.h"
#include "server/scheduler/elastic.h"
#include "server/scheduler/explain_arithmetic.h"
#include "server/scheduler/health.h"
#include "server/scheduler/rank_groups.h"
#include "server/scheduler/slot_limits.h"
#include "server/scheduler/slots.h"
#include "storage/base/printable.h"
#include "storage/records/change.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

constexpr size_t kMostAttempts = 20;

std::string Time(absl::Time time) {
  return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone());
}

// Slots that lost ranks may still hold.
std::string DescribeLost(const NodeRecord& node) {
  std::string text;
  for (const LostRank& lost : node.lost_ranks) {
    if (!MayHoldSlots(node, lost)) continue;
    absl::StrAppend(&text, "; slot ", absl::StrJoin(lost.slots, ", "), " may still run rank ",
                    lost.id.rank, " of attempt ", lost.id.attempt, " of job ", lost.id.job_uid,
                    ", lost at ", Time(lost.time));
  }
  return text.empty() ? "" : text + " ('trainyard node get' says what frees it)";
}

// One sentence on why `node` does or does not serve `demand`.
std::string DescribeNode(const NodeRecord& node, const SlotDemand& demand,
                         const SchedulerSnapshot& snapshot) {
  const std::string name = absl::StrCat("nodes/", node.name, ": ");
  if (!node.reachable || node.lease_end <= snapshot.now) {
    return absl::StrCat(name, "away, its lease ended at ", Time(node.lease_end));
  }
  if (node.draining) return absl::StrCat(name, "draining, takes no new work");
  if (IsRevoked(node)) return absl::StrCat(name, "its key was revoked");
  if (GivesWorkAway(node)) return absl::StrCat(name, "leaves at ", Time(node.leave_time));
  if (const std::string why = CordonReason(node); !why.empty()) {
    return absl::StrCat(name, "cordoned, ", why);
  }
  SchedulerSnapshot alone{.now = snapshot.now, .attempts = snapshot.attempts, .nodes = {node}};
  const SlotTable slots(alone);
  if (node.name == demand.avoid) {
    return absl::StrCat(name, "failed it last, and others could take it");
  }
  SlotDemand one{.count = 1, .device = demand.device, .bytes = demand.bytes};
  const bool otherwise = !demand.arithmetic.empty() && slots.Count(one).present > 0;
  one.arithmetic = demand.arithmetic;
  const SlotTable::Counts counts = slots.Count(one);
  if (counts.present == 0 && otherwise) {
    return absl::StrCat(name, "computes otherwise than the job began, or does not say how");
  }
  if (counts.present == 0) {
    return absl::StrCat(name, "has ", slots.DescribePresent(), ", none serves ",
                        DescribeDemand(one));
  }
  return absl::StrCat(name, counts.free, " of ", counts.present, " fitting ",
                      counts.present == 1 ? "slot" : "slots", " free", DescribeLost(node));
}

// Of a job that runs on some number of slots: why so many.
void DescribeSlots(const JobRecord& job, const AttemptRecord& attempt,
                   const SchedulerSnapshot& snapshot, const PlannerOptions& options,
                   std::vector<std::string>& details) {
  const int slots = static_cast<int>(attempt.ranks.size());
  details.push_back(absl::StrCat("runs on ", slots, slots == 1 ? " slot" : " slots",
                                 "; it may have ", DescribeRange(job)));
  if (attempt.layout != job.layout) {
    details.push_back("goes on in the layout that it was asked for once it has the slots for it");
  }
  if (slots < job.min_slots) {
    details.push_back(
        absl::StrCat("gets ", job.min_slots, " slots",
                     job.arithmetic_rule == ArithmeticRule::kAny ? "" : " that compute alike",
                     " once so many are there that no waiting job could use"));
  }
  if (slots >= job.max_slots) return;
  const ProjectSlots held(snapshot);
  const SlotLedger ledger(snapshot.slot_limits, held);
  if (ledger.Left(job) < std::max(1, job.slot_step)) {
    details.push_back(absl::StrCat("takes no more slots while jobs of projects/", job.project,
                                   " hold the ", ledger.Limit(job), " that they may together"));
    return;
  }
  const int useful = UsefulSlots(job, job.max_slots);
  if (useful <= slots) {
    details.push_back(absl::StrCat(
        "more slots would not make it faster: of ", job.logical_ranks, " logical ranks some ",
        job.slot_step > 1 ? "group of slots" : "slot", " would host as many"));
    return;
  }
  const auto growths = static_cast<int>(GrowthsSince(job, snapshot.now).size());
  details.push_back(absl::StrCat(
      "takes more slots",
      job.slot_step > 1 ? absl::StrCat(", ", job.slot_step, " at a time (parallel.layout),") : "",
      " once they have been of use to no waiting job for ",
      absl::FormatDuration(options.grow_after), ", at most ", options.most_growths,
      " times an hour (", growths, " of them in the last hour), and once it has run for ten times ",
      "as long as its start took"));
}

std::string DescribeAttempt(const AttemptRecord& attempt, const JobRecord& job) {
  const absl::StatusOr<v1::JobSpec> spec = plan::SpecInLayout(job.spec, attempt.layout);
  const bool known = !job.spec.empty() && spec.ok();
  const int group = known ? std::max(1, spec->parallel().layout().tensor()) : job.group_ranks;
  std::string text = absl::StrCat(
      "attempt ", attempt.attempt, ": placed at ", Time(attempt.create_time), " on ",
      attempt.ranks.size() == 1 ? "" : absl::StrCat(attempt.ranks.size(), " slots of "),
      absl::StrJoin(NodesOf(attempt), ", "), " from step ", attempt.restore_step);
  if (known && !(attempt.layout.empty() && job.layout.empty())) {
    absl::StrAppend(&text, " in the layout ", plan::DescribeLayout(*spec));
  }
  if (const std::string over = DescribeGroupsOverNodes(SlotsOf(attempt), group); !over.empty()) {
    absl::StrAppend(&text, "; ", over);
  }
  const RankRecord* first = nullptr;
  for (const RankRecord& rank : attempt.ranks) {
    if (!rank.failure.has_value()) continue;
    if (first == nullptr || rank.gone_time < first->gone_time) first = &rank;
  }
  if (first != nullptr) {
    absl::StrAppend(&text, "; rank ", first->id.rank, " on ", first->node,
                    first->outcome == RankOutcome::kLost ? " was lost: " : " failed: ",
                    first->failure->message);
  } else if (attempt.end_time != absl::InfinitePast()) {
    const bool lost = std::any_of(attempt.ranks.begin(), attempt.ranks.end(), [](const auto& rank) {
      return rank.outcome == RankOutcome::kLost;
    });
    absl::StrAppend(&text, lost ? "; lost with its node at " : "; ended at ",
                    Time(attempt.end_time));
  }
  return text;
}

void SuggestForWaiting(const Explanation& explanation, const std::string& project,
                       const SlotDemand& demand, const SchedulerSnapshot& snapshot,
                       const SpecChanges& changes, std::vector<std::string>& out) {
  const std::string& code = explanation.reason.code;
  if (code == reason::kNoNodes) {
    out.push_back("start an agent (trainyard-agent --help)");
    return;
  }
  if (code == reason::kBehindOthers || code == reason::kWaitingForSlots) {
    out.push_back("a higher priority goes ahead; cancelling or pausing a running job frees slots");
    return;
  }
  if (code == reason::kProjectLimit) {
    const auto limit = snapshot.slot_limits.find(project);
    const int most =
        limit == snapshot.slot_limits.end() ? 0 : std::min(limit->second, demand.count - 1);
    if (most > 0 && limit->second < demand.count && changes.MostSlots(most) > 0) {
      out.push_back(absl::StrCat("ask for at most ", changes.MostSlots(most),
                                 changes.MostSlots(most) == 1 ? " slot" : " slots",
                                 " (resources.min_slots)"));
    }
    out.push_back("an admin may raise the limit (trainyard admin project set --max-slots)");
    return;
  }
  if (code != reason::kFitsNoNode) return;
  bool device = false;
  int64_t largest = 0;
  for (const NodeRecord& node : snapshot.nodes) {
    for (const SlotRecord& slot : node.slots) {
      if (!demand.device.empty() && slot.device != demand.device) continue;
      device = true;
      largest = std::max(largest, slot.memory_bytes);
    }
  }
  if (!device) {
    out.push_back(absl::StrCat("no node has a ", demand.device, " slot: ",
                               changes.MayHaveAnyDevice() ? "leave resources.device out, or " : "",
                               "add such a node"));
  } else if (largest < demand.bytes) {
    const std::string less = changes.WhatNeedsLessMemory();
    out.push_back(absl::StrCat("the largest slot has ", DescribeBytes(largest), ": ",
                               less.empty() ? "a smaller model needs less memory" : less));
  } else {
    const bool fewer = changes.MostSlots(demand.count - 1) > 0;
    out.push_back(absl::StrCat(fewer ? "ask for fewer slots (resources.min_slots), " : "",
                               "undrain a node, or add one"));
  }
}

void SuggestForFailure(const FailureRecord& failure, const SpecChanges& changes,
                       std::vector<std::string>& out) {
  const std::string& category = failure.category;
  if (const std::string less = changes.WhatNeedsLessMemory();
      category == "OUT_OF_MEMORY" && !less.empty()) {
    out.push_back(less);
  }
  if (category == "NUMERIC") {
    out.push_back(absl::StrCat(
        "a lower schedule.learning_rate, more schedule.warmup_steps or optimizer.clip_norm "
        "may keep the loss finite",
        changes.MayRollBack()
            ? "; training.on_non_finite=ROLL_BACK leaves out the data that broke it"
            : ""));
  }
  if (category == "LOST")
    out.push_back(
        "see in the log, if its node is back, whether the job takes its nodes down; resume it "
        "then");
  if (category == kStartCategory)
    out.push_back("look at the agent's log on the node, then resume it");
  if (category == "STORAGE") out.push_back("free space where the checkpoints go, then resume it");
  if (category == "USER") out.push_back("mend the job file as the message says, then submit again");
}

void DescribeLostOf(const JobRecord& job, const NodeRecord& node, const PlannerOptions& options,
                    Explanation& explanation) {
  for (const LostRank& lost : node.lost_ranks) {
    if (lost.id.job_uid != job.uid) continue;
    explanation.details.push_back(absl::StrCat(
        "rank ", lost.id.rank, " of attempt ", lost.id.attempt, " may still run on nodes/",
        node.name, ", whose lease ended at ", Time(lost.time),
        ": the job is CANCELLED once that node is heard of again, and at ",
        Time(lost.time + options.orphan_limit + kOrphanMargin), " at the latest"));
  }
}

}  // namespace

Explanation Explain(const JobRecord& job, const std::vector<AttemptRecord>& attempts,
                    const SchedulerSnapshot& snapshot, const PlannerOptions& options,
                    const AcceptsSpec& accepts) {
  const SpecChanges changes(job, accepts);
  Explanation explanation{.reason = job.reason};
  if (job.state == JobState::kQueued && !IsResizing(job)) {
    const Description description = Describe(snapshot, options, job.uid, changes);
    SlotTable slots(snapshot);
    const SlotDemand demand = slots.DemandOf(job);
    if (description.queue_position > 0) {
      explanation.queue_position = description.queue_position;
      explanation.reason = description.reason;
      const std::string& code = description.reason.code;
      if (code == reason::kWaitingForSlots || code == reason::kBehindOthers ||
          code == reason::kFitsNoNode) {
        const std::string smaller =
            DescribeSmallerGang(description.smaller, demand, changes.logical_ranks());
        if (!smaller.empty()) absl::StrAppend(&explanation.reason.message, "; ", smaller);
      }
      explanation.ahead = description.ahead;
      explanation.earliest_start = description.earliest_start;
    }
    for (const NodeRecord& node : snapshot.nodes) {
      explanation.details.push_back(DescribeNode(node, demand, snapshot));
    }
    for (std::string& sentence : ExplainArithmetic(slots, demand)) {
      explanation.details.push_back(std::move(sentence));
    }
    explanation.suggestions = SuggestForArithmetic(slots, demand, description.mixed_starts);
    SuggestForWaiting(explanation, job.project, demand, snapshot, changes, explanation.suggestions);
  }
  if (!job.arithmetic.empty()) {
    explanation.details.push_back(absl::StrCat("is bound by parallel.arithmetic SAME to '",
                                               job.arithmetic, "', with which it began"));
  }
  if (job.state == JobState::kCancelling) {
    for (const NodeRecord& node : snapshot.nodes) DescribeLostOf(job, node, options, explanation);
  }
  if (job.state == JobState::kStarting && !attempts.empty()) {
    const std::vector<std::string> missing =
        DescribeStart(attempts.back(), ClusterOf(snapshot).nodes);
    explanation.details.insert(explanation.details.end(), missing.begin(), missing.end());
    if (!missing.empty()) {
      absl::StrAppend(&explanation.reason.message, "; ", missing.size(), " of ",
                      attempts.back().ranks.size(), " ranks have not begun");
    }
  }
  const bool elastic =
      job.state == JobState::kRunning && !attempts.empty() && IsElastic(job, attempts.back());
  if (elastic) DescribeSlots(job, attempts.back(), snapshot, options, explanation.details);
  const size_t skipped = attempts.size() > kMostAttempts ? attempts.size() - kMostAttempts : 0;
  for (size_t i = skipped; i < attempts.size(); ++i) {
    explanation.details.push_back(DescribeAttempt(attempts[i], job));
  }
  if (job.failure.has_value()) {
    explanation.details.push_back(absl::StrCat(
        "failure: ", job.failure->category, " on rank ", job.failure->rank, " (nodes/",
        job.failure->node, "), ", job.failure->retryable ? "retryable" : "not retryable", ": ",
        job.failure->message));
    if (job.state == JobState::kFailed) {
      SuggestForFailure(*job.failure, changes, explanation.suggestions);
    }
  }
  return explanation;
}

}  // namespace trainyard
