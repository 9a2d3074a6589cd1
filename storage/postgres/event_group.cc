#include "storage/postgres/event_group.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <pqxx/pqxx>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/postgres/json_columns.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"
#include "storage/postgres/writes.h"

namespace trainyard::postgres {
namespace {

// Microseconds as text for a column that may be NULL; "" becomes NULL.
std::string TimeText(absl::Time time) {
  if (time == absl::InfinitePast() || time == absl::InfiniteFuture()) return "";
  return absl::StrCat(absl::ToUnixMicros(time));
}

}  // namespace

void EventGroup::ReadJobs() {
  std::set<std::string> uids;
  for (const RankEvents& entry : group_) uids.insert(entry.rank.job_uid);
  const Params wanted(std::vector<std::string>(uids.begin(), uids.end()));
  for (const pqxx::row& row : transaction_.RunText(kLockPlacedJobs.text, wanted)) {
    JobAtWork job;
    job.before = job.change.job = JobOf(row);
    jobs_[job.before.uid] = std::move(job);
  }
  for (AttemptRecord& attempt : AttemptsOf(transaction_.RunText(kDesiredAttempts.text, wanted))) {
    // A job that was resumed after the query above has not been locked: ReadEndedJob finds it.
    const auto job = jobs_.find(attempt.job_uid);
    if (job == jobs_.end()) continue;
    job->second.attempt_before = attempt;
    job->second.attempt = std::move(attempt);
  }
  for (const std::string& uid : uids) {
    if (jobs_.count(uid) == 0) ReadEndedJob(uid);
  }
}

// For a rank that reports although its job has ended, or again because its first answer was lost.
void EventGroup::ReadEndedJob(const std::string& uid) {
  RanksOfJob found = LockRanks(transaction_, uid);
  if (!found.job.has_value()) return;
  JobAtWork& job = jobs_[uid];
  job.before = job.change.job = *std::move(found.job);
  if (found.attempt.has_value()) job.attempt_before = job.attempt = *std::move(found.attempt);
}

// Points of the current series within the steps that the group reports.
absl::Status EventGroup::ReadSeriesOfAll() {
  std::map<std::string, StepRange> steps;  // by job
  for (const RankEvents& entry : group_) {
    const std::string& uid = entry.rank.job_uid;
    if (jobs_.count(uid) == 0) continue;
    StepRange& range = steps.try_emplace(uid, StepRange{.job_uid = uid}).first->second;
    for (const RankEventRecord& event : entry.events) range.Add(event);
  }
  std::vector<StepRange> wanted;
  for (const auto& [uid, range] : steps) {
    if (range.from <= range.to) wanted.push_back(range);
  }
  if (wanted.empty()) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(std::vector<SeriesPoints> series, ReadSeries(transaction_, wanted));
  for (size_t i = 0; i < wanted.size(); ++i) {
    jobs_.at(wanted[i].job_uid).series = std::move(series[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<AppendResult> EventGroup::Take(const RankEvents& entry, absl::Time now) {
  const RankId& id = entry.rank;
  AppendResult result;
  result.fenced = true;
  const auto found = jobs_.find(id.job_uid);
  if (found == jobs_.end()) return result;
  JobAtWork& job = found->second;
  if (id.attempt < 1 || job.attempt.attempt != id.attempt || id.rank < 0 ||
      id.rank >= static_cast<int>(job.attempt.ranks.size())) {
    return result;
  }
  const RankRecord& rank = job.attempt.ranks[id.rank];
  result.nodes = NodesOf(job.attempt);
  result.acked_sequence = rank.acked_sequence;
  if (!MayReport(entry, rank)) return result;
  if (transaction_.repeated_in_doubt && Stored(rank, entry.events)) {
    result.fenced = false;
    result.job_changed = true;
    return result;
  }
  if (IsOver(rank.state)) {
    result.session_over = LostWithSession(transaction_, entry.agent, rank);
    return result;
  }

  const InSeries in_series = [&job](int64_t step, MetricSplit split) {
    return job.series.count({step, split}) > 0;
  };
  TY_ASSIGN_OR_RETURN(AttemptChange change, TakeEvents(job.change.job, job.attempt, id.rank,
                                                       entry.events, in_series, now));
  result.fenced = false;
  const int64_t acked = change.attempt.ranks[id.rank].acked_sequence;
  if (acked == rank.acked_sequence) return result;
  result.acked_sequence = acked;
  result.items_known = true;
  result.job_changed = change.change.changed || change.wishes_changed;
  for (FeedRecord& item : change.change.feed) {
    if (const auto* metric = std::get_if<MetricRecord>(&item.what)) {
      job.series.emplace(metric->step, metric->split);
    }
    if (const auto* run = std::get_if<MetricRun>(&item.what)) {
      for (int64_t step : run->steps) job.series.emplace(step, run->split);
    }
    job.change.feed.push_back(std::move(item));
  }
  std::move(change.checkpoints.begin(), change.checkpoints.end(),
            std::back_inserter(job.checkpoints));
  job.change.changed |= change.change.changed;
  job.change.job = std::move(change.change.job);
  job.attempt = std::move(change.attempt);
  job.touched = true;
  return result;
}

absl::Status EventGroup::WriteJobs(const Query& query, const std::vector<JobAtWork*>& touched) {
  if (touched.empty()) return absl::OkStatus();
  std::vector<std::string> uids, states, codes, messages, causes, not_before, started, ended,
      deadlines, failures, uris, avoided, bound_to;
  std::vector<int64_t> versions_before, attempts_before, versions, attempts, steps, updated, items;
  std::vector<int> restarts, losses;
  for (const JobAtWork* one : touched) {
    const JobRecord& job = one->change.job;
    uids.push_back(job.uid);
    versions_before.push_back(one->before.version);
    attempts_before.push_back(one->before.attempt);
    states.emplace_back(JobStateName(job.state));
    codes.push_back(job.reason.code);
    messages.push_back(job.reason.message);
    causes.emplace_back(SuspendCauseName(job.suspend_cause));
    versions.push_back(job.version);
    attempts.push_back(job.attempt);
    restarts.push_back(job.restarts);
    steps.push_back(job.step);
    updated.push_back(absl::ToUnixMicros(job.update_time));
    not_before.push_back(TimeText(job.not_before));
    started.push_back(TimeText(job.start_time));
    ended.push_back(TimeText(job.end_time));
    deadlines.push_back(TimeText(job.suspend_deadline));
    failures.push_back(FailureJson(job.failure).value_or(""));
    uris.push_back(job.newest_checkpoint_uri);
    losses.push_back(job.losses);
    avoided.push_back(job.avoid_node);
    bound_to.push_back(job.arithmetic);
    items.push_back(ItemsIn(one->change.feed));
  }
  std::map<std::string, int64_t> newest;  // sequences
  for (const pqxx::row& row : transaction_.RunText(
           query.text,
           Params(uids, versions_before, attempts_before, states, codes, messages, causes, versions,
                  attempts, restarts, steps, updated, not_before, started, ended, deadlines,
                  failures, uris, items, losses, avoided, bound_to))) {
    newest[row[0].as<std::string>()] = row[1].as<int64_t>();
  }
  if (newest.size() != touched.size()) {
    return absl::AbortedError("a job whose ranks report changed under its lock");
  }
  std::vector<NewFeedItems> feeds;
  for (JobAtWork* one : touched) {
    const std::vector<FeedRecord>& feed = one->change.feed;
    const JobRecord& job = one->before;
    one->first_sequence = newest.at(job.uid) - ItemsIn(feed) + 1;
    feeds.push_back({job.uid, job.create_time, one->first_sequence, feed});
  }
  TY_RETURN_IF_ERROR(WriteFeeds(transaction_, feeds));
  for (const JobAtWork* one : touched) {
    TY_RETURN_IF_ERROR(CompactIfEnded(transaction_, one->before, one->change.job));
  }
  return absl::OkStatus();
}

absl::Status EventGroup::WriteRanks(const std::vector<JobAtWork*>& touched) {
  std::vector<std::string> uids, states, outcomes, failures, gone;
  std::vector<int64_t> attempts, acked;
  std::vector<int> ranks;
  for (const JobAtWork* one : touched) {
    for (size_t i = 0; i < one->attempt.ranks.size(); ++i) {
      const RankRecord& rank = one->attempt.ranks[i];
      if (SameRank(one->attempt_before.ranks[i], rank)) continue;
      uids.push_back(one->before.uid);
      attempts.push_back(one->attempt.attempt);
      ranks.push_back(rank.id.rank);
      states.emplace_back(RankStateName(rank.state));
      outcomes.emplace_back(RankOutcomeName(rank.outcome));
      acked.push_back(rank.acked_sequence);
      failures.push_back(FailureJson(rank.failure).value_or(""));
      gone.push_back(TimeText(rank.gone_time));
    }
  }
  const pqxx::result moved = transaction_.RunText(
      kUpdateRanks.text, Params(uids, attempts, ranks, states, outcomes, acked, failures, gone));
  if (static_cast<size_t>(moved.size()) == uids.size()) return absl::OkStatus();
  return absl::AbortedError("a rank changed under the lock of its job");
}

void EventGroup::GiveItems(std::vector<absl::StatusOr<AppendResult>>& answers) {
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok() || !answers[i]->items_known) continue;
    JobAtWork& job = jobs_.at(group_[i].rank.job_uid);
    answers[i]->items = NumberedItems(job.first_sequence, std::exchange(job.change.feed, {}));
  }
}

absl::StatusOr<std::vector<absl::StatusOr<AppendResult>>> EventGroup::Append() {
  ReadJobs();
  TY_RETURN_IF_ERROR(ReadSeriesOfAll());
  const absl::Time now = Now(transaction_);
  std::vector<absl::StatusOr<AppendResult>> answers;
  for (const RankEvents& entry : group_) answers.push_back(Take(entry, now));
  std::vector<JobAtWork*> touched, living, ending;
  for (auto& [uid, job] : jobs_) {
    if (!job.touched) continue;
    touched.push_back(&job);
    (IsTerminal(job.change.job.state) ? ending : living).push_back(&job);
  }
  if (touched.empty()) return answers;
  TY_RETURN_IF_ERROR(WriteRanks(touched));
  for (const JobAtWork* one : touched) {
    WriteCheckpoints(transaction_, one->checkpoints);
    WriteFailures(transaction_,
                  NewFailures(one->change.job, one->attempt_before, one->attempt, now));
  }
  // Jobs are written last: the rows of ranks are fenced by their job in `jobs`, which a job that
  // ends leaves.
  for (const JobAtWork* one : touched) WriteSlots(transaction_, one->before, one->change.job);
  TY_RETURN_IF_ERROR(WriteJobs(kUpdateJobs, living));
  TY_RETURN_IF_ERROR(WriteJobs(kEndJobs, ending));
  GiveItems(answers);
  return answers;
}

}  // namespace trainyard::postgres
