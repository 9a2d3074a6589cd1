#include "server/scheduler/pass_steps.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/elastic.h"
#include "server/scheduler/health.h"
#include "server/scheduler/rank_groups.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

// The reasons of jobs that came within such a time fall due at one moment, to be written in one
// pass.
constexpr absl::Duration kToldTogether = absl::Milliseconds(500);
constexpr size_t kProjectOfClass = std::tuple_size_v<DemandClass> - 1;

// The time until which a job is too young for its reason to be written; a time in the past: it may
// be written.
absl::Time ReasonDueAt(const JobRecord& job, absl::Time now, const PlannerOptions& options) {
  // A job that seems to come from the future was submitted before the store's clock went back. One
  // in backoff does not start at once, however young it is.
  if (job.create_time > now || job.not_before > now) return absl::InfinitePast();
  if (options.tell_after == absl::ZeroDuration()) return job.create_time;
  const absl::Duration until = job.create_time + options.tell_after - absl::UnixEpoch();
  return absl::UnixEpoch() + absl::Ceil(until, kToldTogether);
}

}  // namespace

DemandClass ClassOf(const JobRecord& job, const SlotLimits& limits) {
  const ArithmeticRule rule = job.arithmetic_rule;
  return {std::max(1, job.min_slots),
          job.bytes_per_slot,
          job.device,
          AvoidedBy(job),
          rule == ArithmeticRule::kAny       ? Mixing::kAlways
          : rule == ArithmeticRule::kUnknown ? Mixing::kIfNeeded
                                             : Mixing::kNever,
          rule == ArithmeticRule::kSame ? job.arithmetic : std::string(),
          LimitedProject(job, limits)};
}

Told Tell(const JobRecord& job, const Reason& reason, absl::Time now, const PlannerOptions& options,
          Pass& pass) {
  if (const absl::Time until = ReasonDueAt(job, now, options); until > now) {
    pass.next = std::min(pass.next, until);
    return Told::kTooYoung;
  }
  if (pass.decisions.reasons.size() >= options.most_reasons) {
    pass.next = now;
    return Told::kEnough;
  }
  pass.decisions.reasons.push_back(
      {.job_uid = job.uid, .job_version = job.version, .reason = reason});
  return Told::kYes;
}

const char* KeptBehind(const DemandClass& demand, const Reason& reason) {
  const bool limited = !std::get<kProjectOfClass>(demand).empty();
  const bool slots =
      reason.code == reason::kWaitingForSlots || reason.code == reason::kBehindOthers;
  return limited && slots ? reason::kProjectLimit : "";
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
  const char* why = "";
  if (slots.CouldHold(OfAnyArithmetic(demand))) {
    why = demand.arithmetic.empty() ? " on slots that compute alike (parallel.arithmetic)"
                                    : " on such slots (parallel.arithmetic is SAME)";
  }
  return {reason::kFitsNoNode, absl::StrCat("needs ", DescribeDemand(demand),
                                            "; the nodes that take work cannot hold it", why)};
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

Reason ReasonForPlacement(const std::vector<Placement::Rank>& ranks, const JobRecord& job) {
  std::vector<std::string> nodes;
  for (const Placement::Rank& rank : ranks) {
    if (nodes.empty() || nodes.back() != rank.node) nodes.push_back(rank.node);
  }
  const std::string over = DescribeGroupsOverNodes(ranks, job.group_ranks);
  if (!over.empty()) {  // the ranks of a node may be apart
    std::set<std::string> known;
    std::erase_if(nodes, [&known](const std::string& node) { return !known.insert(node).second; });
  }
  const bool again =
      !AvoidedBy(job).empty() && std::count(nodes.begin(), nodes.end(), job.avoid_node) > 0;
  return {reason::kPlaced,
          absl::StrCat(ranks.size(), ranks.size() == 1 ? " slot" : " slots", " on ",
                       absl::StrJoin(nodes, ", "),
                       again ? absl::StrCat("; ", job.avoid_node,
                                            " failed it last, but no other node could take it")
                             : "",
                       over.empty() ? "" : "; ", over)};
}

namespace {

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

// A job that is being cancelled waits for its lost ranks no longer than they can live.
// `newest_loss`: by job, when the last of its lost ranks, of any attempt, was lost.
void LookAtCancelling(const Cluster& cluster, const JobRecord& job, const AttemptRecord& attempt,
                      const std::map<std::string, absl::Time>& newest_loss,
                      const PlannerOptions& options, Pass& pass) {
  absl::Time lost = absl::InfinitePast();
  for (const RankRecord& rank : attempt.ranks) {
    if (!IsOver(rank.state)) return;
    if (rank.state == RankState::kLost) lost = std::max(lost, rank.gone_time);
  }
  const auto of_all = newest_loss.find(job.uid);
  if (of_all != newest_loss.end()) lost = std::max(lost, of_all->second);
  const absl::Time over = lost + options.orphan_limit + kOrphanMargin;
  if (over <= cluster.now) {
    pass.decisions.overdue_cancels.push_back({.job_uid = job.uid, .job_version = job.version});
  } else {
    pass.next = std::min(pass.next, over);
  }
}

void LookForLostNodes(const Cluster& cluster, const PlannerOptions& options, Pass& pass) {
  for (const NodeRecord* node : cluster.nodes) {
    if (!node->reachable) continue;
    const absl::Time lost_at = node->lease_end + options.lease_margin;
    if (lost_at <= cluster.now) {
      pass.decisions.lost_nodes.push_back({node->name, node->beat});
    } else {
      pass.next = std::min(pass.next, lost_at);
    }
  }
}

// What becomes of a job with ranks on nodes that give their work away; nullopt: it has none.
std::optional<GivenAway> FindGivenAway(absl::Time now, const AttemptRecord& attempt,
                                       const std::map<std::string, absl::Time>& giving_away,
                                       const PlannerOptions& options) {
  GivenAway given{.grace = options.drain_grace};
  for (const RankRecord& rank : attempt.ranks) {
    const auto node = giving_away.find(rank.node);
    if (node == giving_away.end() || IsOver(rank.state)) continue;
    const bool leaves = node->second != absl::InfiniteFuture();
    if (given.why.empty() || leaves) {
      given.why = absl::StrCat("nodes/", rank.node, leaves ? " leaves" : " is drained");
    }
    if (leaves) {
      given.leaves = true;
      given.grace = std::min(given.grace, std::max(node->second - now, absl::ZeroDuration()));
    }
  }
  if (given.why.empty()) return std::nullopt;
  for (const auto& [node, until] : giving_away) given.nodes.insert(node);
  return given;
}

void LookAtRunning(const Cluster& cluster, const PlannerOptions& options, Pass& pass) {
  std::map<std::string, absl::Time> giving_away;  // by name: until when
  std::map<std::string, std::string> cordoned;    // by name: why
  std::map<std::string, absl::Time> newest_loss;
  for (const NodeRecord* node : cluster.nodes) {
    if (node->reachable && GivesWorkAway(*node)) giving_away[node->name] = node->leave_time;
    if (const std::string why = CordonReason(*node); !why.empty()) cordoned[node->name] = why;
    for (const LostRank& rank : node->lost_ranks) {
      absl::Time& newest = newest_loss.try_emplace(rank.id.job_uid, rank.time).first->second;
      newest = std::max(newest, rank.time);
    }
  }
  for (const auto& [running, attempt] : cluster.running) {
    const JobRecord& job = *running;
    if (job.state == JobState::kSuspending) {
      if (job.suspend_deadline <= cluster.now) {
        pass.suspension_overdue = true;
      } else {
        pass.next = std::min(pass.next, job.suspend_deadline);
      }
    }
    if (job.state == JobState::kCancelling && attempt != nullptr) {
      LookAtCancelling(cluster, job, *attempt, newest_loss, options, pass);
    }
    if (job.state != JobState::kStarting && job.state != JobState::kRunning) continue;
    if (attempt == nullptr || (giving_away.empty() && cordoned.empty())) continue;
    const std::optional<GivenAway> given =
        FindGivenAway(cluster.now, *attempt, giving_away, options);
    if (!given.has_value()) {
      LeaveCordoned(job, attempt->ranks, cordoned, pass);
      continue;
    }
    if (std::optional<Resize> stay = StayElsewhere(job, *attempt, *given)) {
      pass.decisions.resizes.push_back(*std::move(stay));
      continue;
    }
    pass.decisions.suspensions.push_back(
        {.job_uid = job.uid,
         .job_version = job.version,
         .cause = SuspendCause::kDrained,
         .reason = {reason::kNodeDrained,
                    absl::StrCat(given->why, ": writes a checkpoint, then back to the queue")},
         .grace = given->grace});
  }
}

}  // namespace

bool LookAtCluster(const Cluster& cluster, const PlannerOptions& options, Pass& pass) {
  LookForLostNodes(cluster, options, pass);
  LookAtHealth(cluster, pass);
  LookAtRunning(cluster, options, pass);
  if (pass.decisions.charges.empty()) return true;
  pass.next = cluster.now;
  return false;
}

Cluster ClusterOf(const SchedulerSnapshot& snapshot) {
  Cluster cluster;
  cluster.now = snapshot.now;
  for (const NodeRecord& node : snapshot.nodes) cluster.nodes.push_back(&node);
  std::map<std::string, const AttemptRecord*> attempts;  // newest by job
  for (const AttemptRecord& attempt : snapshot.attempts) attempts[attempt.job_uid] = &attempt;
  for (const JobRecord& job : snapshot.jobs) {
    if (!HoldsSlots(job.state)) continue;
    const auto attempt = attempts.find(job.uid);
    cluster.running.push_back({&job, attempt == attempts.end() ? nullptr : attempt->second});
    const RunningJob& running = cluster.running.back();
    if (running.attempt != nullptr && job.state == JobState::kRunning &&
        IsElastic(job, *running.attempt)) {
      cluster.elastic.push_back(running);
    }
  }
  for (const JobRecord* job : WaitingJobsOf(snapshot)) {
    if (IsResizing(*job)) cluster.resized.push_back(job);
  }
  cluster.find_job = [&snapshot](const std::string& uid) -> const JobRecord* {
    for (const JobRecord* job : JobsOf(snapshot)) {
      if (job->uid == uid) return job;
    }
    return nullptr;
  };
  return cluster;
}

}  // namespace trainyard
