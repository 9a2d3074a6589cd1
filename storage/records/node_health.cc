#include "storage/records/node_health.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

using Jobs = std::set<std::string>;  // uids

bool IsOfTheNode(const RankRecord& rank) {
  if (!rank.failure.has_value()) return false;
  const std::string& category = rank.failure->category;
  if (rank.outcome == RankOutcome::kLost) return true;
  return rank.outcome == RankOutcome::kFailed &&
         (category == "DEVICE" || category == "STORAGE" || category == kStartCategory);
}

std::vector<NodeFailure> FailuresThatCount(const NodeRecord& node, absl::Time now) {
  std::vector<NodeFailure> counting;
  for (const NodeFailure& failure : node.failures) {
    if (failure.time <= now - kFailuresCount || failure.time <= node.lifted_time) continue;
    // A new boot may mend a device or a disk, but a node that crashed may crash again.
    if (failure.category != "LOST" && failure.time <= node.boot_time) continue;
    counting.push_back(failure);
  }
  return counting;
}

}  // namespace

std::vector<FailureOnNode> NewFailures(const JobRecord& job, const AttemptRecord& before,
                                       const AttemptRecord& after, absl::Time now) {
  std::vector<FailureOnNode> failures;
  for (size_t i = 0; i < after.ranks.size(); ++i) {
    const RankRecord& rank = after.ranks[i];
    if (before.ranks[i].outcome != RankOutcome::kNone || !IsOfTheNode(rank)) continue;
    const bool lost = rank.outcome == RankOutcome::kLost;
    failures.push_back({rank.node,
                        {.job_uid = job.uid,
                         .job_id = job.job_id,
                         .attempt = rank.id.attempt,
                         .category = rank.failure->category,
                         .time = now,
                         .charged = lost && job.losses > kFreeLosses}});
  }
  return failures;
}

std::vector<RankRecord> RejoinedRanks(const AttemptRecord& before, const AttemptRecord& after) {
  std::vector<RankRecord> ranks;
  for (size_t i = 0; i < after.ranks.size(); ++i) {
    if (before.ranks[i].state == RankState::kLost && !IsOver(after.ranks[i].state)) {
      ranks.push_back(after.ranks[i]);
    }
  }
  return ranks;
}

int JobsToBlame(const std::vector<NodeFailure>& failures, int most) {
  std::vector<Jobs> events;
  std::map<absl::Time, size_t> losses;  // their events, by time
  Jobs all;
  for (const NodeFailure& failure : failures) {
    all.insert(failure.job_uid);
    if (failure.category != "LOST") {
      events.push_back({failure.job_uid});
      continue;
    }
    const auto [loss, is_new] = losses.emplace(failure.time, events.size());
    if (is_new) events.emplace_back();
    events[loss->second].insert(failure.job_uid);
  }
  if (events.empty() || most == 0) return 0;
  // The first event is explained by one of the jobs that it struck. Each is tried, and other jobs
  // have to explain the failures that it does not.
  int fewest = most;
  for (const std::string& uid : events.front()) {
    std::vector<NodeFailure> left;
    for (const NodeFailure& failure : failures) {
      const bool explained = failure.category == "LOST"
                                 ? events[losses.at(failure.time)].count(uid) > 0
                                 : failure.job_uid == uid;
      if (!explained) left.push_back(failure);
    }
    fewest = std::min(fewest, 1 + JobsToBlame(left, most - 1));
  }
  return fewest;
}

std::string SicknessOf(const NodeRecord& node, absl::Time now) {
  const std::vector<NodeFailure> failures = FailuresThatCount(node, now);
  if (JobsToBlame(failures, kJobsToCordon) < kJobsToCordon) return "";
  std::map<std::string, std::string> newest;  // what struck a job last, by its name
  for (const NodeFailure& failure : failures) newest[failure.job_id] = failure.category;
  std::vector<std::string> struck;
  for (const auto& [job, category] : newest) {
    if (struck.size() < 2 * kJobsToCordon) struck.push_back(absl::StrCat(category, " of ", job));
  }
  return absl::StrCat("within an hour its failures struck ", newest.size(), " jobs (",
                      absl::StrJoin(struck, ", "), newest.size() > struck.size() ? ", ..." : "",
                      "); look at the machine, then trainyard node undrain ", node.name,
                      " lifts this");
}

std::vector<NodeCordon> NodesToCordon(const std::vector<const NodeRecord*>& nodes, absl::Time now) {
  int reachable = 0, cordoned = 0, taking_work = 0;
  for (const NodeRecord* one : nodes) {
    const NodeRecord& node = *one;
    reachable += node.reachable;
    cordoned += node.reachable && !node.cordon.empty();
    taking_work += TakesWorkNow(node, now);
  }
  std::vector<NodeCordon> cordons;
  for (const NodeRecord* one : nodes) {
    const NodeRecord& node = *one;
    if (!node.reachable || !node.cordon.empty() || node.failures.empty()) continue;
    if (cordoned >= reachable / kNodesPerFailureCordon) break;
    const bool takes_work = TakesWorkNow(node, now);
    if (taking_work - takes_work < 1) continue;
    std::string why = SicknessOf(node, now);
    if (why.empty()) continue;
    cordons.push_back({node.name, std::move(why)});
    ++cordoned;
    taking_work -= takes_work;
  }
  return cordons;
}

}  // namespace trainyard
