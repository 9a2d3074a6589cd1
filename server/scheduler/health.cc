#include "server/scheduler/health.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/job_store.h"

namespace trainyard {
namespace {

std::string DescribeRank(const RankRecord& rank, const std::vector<const NodeRecord*>& nodes) {
  const auto node = std::find_if(nodes.begin(), nodes.end(),
                                 [&rank](const NodeRecord* one) { return one->name == rank.node; });
  return absl::StrCat(
      "its worker has ", rank.acked_sequence > 0 ? "started and not restored" : "not been heard of",
      "; nodes/", rank.node,
      " said last: ", node == nodes.end() ? "nothing" : DescribeReport((*node)->report));
}

// The first rank that has not begun, if the attempt is out of time and nothing else ended it.
const RankRecord* FindLate(const AttemptRecord& attempt, absl::Time now) {
  if (attempt.start_by > now) return nullptr;
  const RankRecord* late = nullptr;
  for (const RankRecord& rank : attempt.ranks) {
    if (rank.outcome != RankOutcome::kNone) return nullptr;  // the gang is over
    if (late == nullptr && rank.state == RankState::kAssigned) late = &rank;
  }
  return late;
}

void LookForFailedStarts(const Cluster& cluster, Pass& pass) {
  for (const auto& [job, attempt] : cluster.running) {
    if (attempt == nullptr || attempt->start_by == absl::InfiniteFuture()) continue;
    if (attempt->start_by > cluster.now) pass.next = std::min(pass.next, attempt->start_by);
    const RankRecord* const rank = FindLate(*attempt, cluster.now);
    if (rank == nullptr || job->state != JobState::kStarting) continue;
    pass.decisions.failed_starts.push_back(
        {.job_uid = job->uid,
         .job_version = job->version,
         .failure = {.category = kStartCategory,
                     .message = absl::StrCat("has not begun within the limit for a start: ",
                                             DescribeRank(*rank, cluster.nodes)),
                     .retryable = true,
                     .rank = rank->id.rank,
                     .node = rank->node}});
  }
}

// A job other than that of `failure` which began on the node after it and runs there.
const JobRecord* FindSurvivor(const Cluster& cluster, const std::string& node,
                              const NodeFailure& failure) {
  for (const auto& [job, attempt] : cluster.running) {
    if (attempt == nullptr || job->uid == failure.job_uid || attempt->create_time <= failure.time) {
      continue;
    }
    for (const RankRecord& rank : attempt->ranks) {
      if (rank.node == node && rank.state == RankState::kRunning) return job;
    }
  }
  return nullptr;
}

bool IsUnpaidLoss(const NodeFailure& failure) {
  return failure.category == "LOST" && !failure.charged;
}

// Whether a charge would change the job: one without restarts left fails once it waits.
bool CanPay(const JobRecord& job) {
  return job.state != JobState::kCancelling &&
         (job.restarts < job.max_restarts || job.state == JobState::kQueued);
}

void LookForCharges(const Cluster& cluster, Pass& pass) {
  std::set<std::string> charged;  // one loss of each job in a pass: its version moves
  for (const NodeRecord* node : cluster.nodes) {
    if (!MayBeCharged(*node)) continue;
    for (const NodeFailure& failure : node->failures) {
      if (!IsUnpaidLoss(failure) || charged.count(failure.job_uid) > 0) continue;
      const JobRecord* const survivor = FindSurvivor(cluster, node->name, failure);
      if (survivor == nullptr) continue;
      const JobRecord* const job = cluster.find_job(failure.job_uid);
      if (job == nullptr || !CanPay(*job)) continue;
      charged.insert(failure.job_uid);
      pass.decisions.charges.push_back(
          {.job_uid = job->uid,
           .job_version = job->version,
           .node = node->name,
           .attempt = failure.attempt,
           .survivor = FormatJobName({survivor->project, survivor->job_id})});
    }
  }
}

}  // namespace

bool MayBeCharged(const NodeRecord& node) {
  return node.reachable && std::any_of(node.failures.begin(), node.failures.end(), IsUnpaidLoss);
}

void LookAtHealth(const Cluster& cluster, Pass& pass) {
  pass.decisions.cordons = NodesToCordon(cluster.nodes, cluster.now);
  LookForFailedStarts(cluster, pass);
  LookForCharges(cluster, pass);
}

std::vector<std::string> DescribeStart(const AttemptRecord& attempt,
                                       const std::vector<const NodeRecord*>& nodes) {
  std::vector<std::string> lines;
  for (const RankRecord& rank : attempt.ranks) {
    if (rank.state != RankState::kAssigned || rank.outcome != RankOutcome::kNone) continue;
    lines.push_back(absl::StrCat("rank ", rank.id.rank, " on nodes/", rank.node, ": ",
                                 DescribeRank(rank, nodes)));
  }
  return lines;
}

}  // namespace trainyard
