#include "storage/records/restored_job.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

std::string StepsOf(const std::vector<CheckpointRecord>& checkpoints) {
  std::string text = checkpoints.size() == 1 ? "step " : "steps ";
  constexpr size_t kMostTold = 5;
  for (size_t i = 0; i < std::min(checkpoints.size(), kMostTold); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", checkpoints[i].step);
  }
  if (checkpoints.size() > kMostTold) {
    absl::StrAppend(&text, " and ", checkpoints.size() - kMostTold, " more");
  }
  return text;
}

}  // namespace

CheckpointsOfRestored CompareCheckpoints(const JobRecord& job,
                                         const std::vector<CheckpointRecord>& recorded,
                                         const std::vector<CheckpointRecord>& there) {
  CheckpointsOfRestored result;
  std::map<int64_t, CheckpointRecord> now;
  for (const CheckpointRecord& one : there) {
    if (one.step >= 0 && (job.total_steps == 0 || one.step <= job.total_steps)) {
      now.emplace(one.step, one);
    }
  }
  std::set<int64_t> known;
  for (const CheckpointRecord& one : recorded) {
    const auto at = now.find(one.step);
    if (at == now.end()) {
      result.missing.push_back(one);
    } else if (at->second.manifest_sha256 == one.manifest_sha256) {
      const std::string uri = at->second.uri;
      at->second = one;  // with what the files do not tell
      at->second.uri = uri;
      if (uri != one.uri) result.moved.push_back(at->second);
      known.insert(one.step);
    }
  }
  for (auto& [step, one] : now) {
    if (known.count(step) == 0) {
      one.job_uid = job.uid;
      one.attempt = job.attempt;
      one.final = one.step == job.total_steps;
      result.found.push_back(one);
    }
    result.now.push_back(one);
  }
  return result;
}

AttemptChange FenceRanks(const JobRecord& job, const AttemptRecord& attempt, RestoredAs as,
                         absl::Time now) {
  std::vector<int> running;
  for (const RankRecord& rank : attempt.ranks) {
    if (!IsOver(rank.state)) running.push_back(rank.id.rank);
  }
  const Reason restored{
      reason::kRestored,
      "the yard was restored from a backup; the job goes on from its newest checkpoint"};
  JobRecord unpaid = job;
  unpaid.losses = 0;                              // or DropRanks may charge the job for this one
  if (IsResizing(job)) unpaid.reason = restored;  // which ends the resize
  const RankOutcome outcome = as == RestoredAs::kCopy ? RankOutcome::kKilled : RankOutcome::kLost;
  AttemptChange result = DropRanks(unpaid, attempt, running, outcome, now);
  JobRecord& fenced = result.change.job;
  fenced.losses = job.losses;
  if (running.empty()) {
    fenced.reason = job.reason;
    return result;
  }
  for (RankRecord& rank : result.attempt.ranks) {
    const bool lost_now = std::find(running.begin(), running.end(), rank.id.rank) != running.end();
    // Without it the node did not fail, and the rank does not rejoin (MayRejoin).
    if (lost_now && rank.outcome == RankOutcome::kLost) rank.failure.reset();
  }
  if (fenced.resize.has_value()) fenced.resize->kept_step = 0;
  if (fenced.state != JobState::kQueued) return result;
  // Of no node that was lost, and of nobody who interrupted the job.
  fenced.failure = job.failure;
  fenced.avoid_node = job.avoid_node;
  fenced.restarts = job.restarts;
  fenced.not_before = absl::InfinitePast();
  fenced.reason = restored;
  for (FeedRecord& item : result.change.feed) {
    auto* moved = std::get_if<StateChangeRecord>(&item.what);
    if (moved != nullptr && moved->to == JobState::kQueued) moved->reason = restored;
  }
  return result;
}

void TakeRestoredCheckpoints(const CheckpointsOfRestored& checkpoints, absl::Time now,
                             JobChange& change) {
  JobRecord& job = change.job;
  const auto add = [&](decltype(FeedRecord::what) what) {
    change.feed.push_back({.time = now, .attempt = job.attempt, .what = std::move(what)});
  };
  if (!checkpoints.missing.empty()) {
    add(NoticeRecord{.warning = true,
                     .message = absl::StrCat(
                         "the yard was restored from a backup; the checkpoints ", "of ",
                         StepsOf(checkpoints.missing), " that it knew are not there any more")});
  }
  if (!checkpoints.found.empty()) {
    add(NoticeRecord{
        .warning = true,
        .message = absl::StrCat("the yard was restored from a backup; the checkpoints of ",
                                StepsOf(checkpoints.found), " were made after it, and are kept. ",
                                "Metrics of the steps before them may be missing")});
    for (const CheckpointRecord& one : checkpoints.found) add(one);
  }
  job.newest_checkpoint_uri = checkpoints.now.empty() ? "" : checkpoints.now.back().uri;
  if (job.resize.has_value()) job.resize->kept_step = 0;
}

}  // namespace trainyard
