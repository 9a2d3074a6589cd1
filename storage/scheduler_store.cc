#include "storage/scheduler_store.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

// Of a Placement or a Resize.
template <typename Decision>
absl::Status CheckRanks(const Decision& decision) {
  TY_RETURN_IF_ERROR(CheckReason(decision.reason));
  if (decision.ranks.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement of job ", decision.job_uid, ": no rank"));
  }
  std::set<std::pair<std::string, int>> slots;
  for (const Placement::Rank& rank : decision.ranks) {
    bool good = !rank.slots.empty();
    for (const int slot : rank.slots) good = good && slots.emplace(rank.node, slot).second;
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat("placement of job ", decision.job_uid,
                                                     ": a rank without slot, or a slot twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view ReplicaOf(absl::string_view holder) { return holder.substr(0, holder.find('/')); }

void TrustLeases(SchedulerSnapshot& snapshot) {
  for (NodeRecord& node : snapshot.nodes) {
    if (node.reachable) node.lease_end = absl::InfiniteFuture();
  }
}

bool RunsBefore(const JobRecord& a, const JobRecord& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return std::tie(a.create_time, a.uid) < std::tie(b.create_time, b.uid);
}

std::vector<const JobRecord*> JobsOf(const SchedulerSnapshot& snapshot) {
  std::vector<const JobRecord*> jobs;
  for (const JobRecord& job : snapshot.jobs) jobs.push_back(&job);
  if (snapshot.queue == nullptr) return jobs;
  for (const auto& job : *snapshot.queue) jobs.push_back(job.get());
  return jobs;
}

std::vector<const JobRecord*> WaitingJobsOf(const SchedulerSnapshot& snapshot) {
  const auto before = [](const JobRecord* a, const JobRecord* b) { return RunsBefore(*a, *b); };
  std::vector<const JobRecord*> waiting;
  if (snapshot.queue != nullptr) {
    waiting.reserve(snapshot.queue->size());
    for (const auto& job : *snapshot.queue) waiting.push_back(job.get());
  }
  const auto sorted = static_cast<std::ptrdiff_t>(waiting.size());
  for (const JobRecord& job : snapshot.jobs) {
    if (job.state == JobState::kQueued) waiting.push_back(&job);
  }
  std::sort(waiting.begin() + sorted, waiting.end(), before);
  std::inplace_merge(waiting.begin(), waiting.begin() + sorted, waiting.end(), before);
  return waiting;
}

absl::Status CheckDecisions(const Decisions& decisions) {
  for (const Placement& placement : decisions.placements) {
    TY_RETURN_IF_ERROR(CheckRanks(placement));
  }
  for (const Resize& resize : decisions.resizes) TY_RETURN_IF_ERROR(CheckRanks(resize));
  for (const Suspension& suspension : decisions.suspensions) {
    TY_RETURN_IF_ERROR(CheckReason(suspension.reason));
  }
  for (const ReasonUpdate& update : decisions.reasons) {
    TY_RETURN_IF_ERROR(CheckReason(update.reason));
  }
  for (const NodeCordon& cordon : decisions.cordons) {
    TY_RETURN_IF_ERROR(CheckText("cordon.reason", cordon.reason));
  }
  for (const FailedStart& start : decisions.failed_starts) {
    TY_RETURN_IF_ERROR(CheckText("failure.message", start.failure.message));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
