#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

void MemoryStores::SetAway(bool away) {
  absl::MutexLock lock(&mu_);
  away_ = away;
}

int64_t MemoryStores::writes() {
  absl::MutexLock lock(&mu_);
  return writes_;
}

int64_t MemoryStores::renewals() {
  absl::MutexLock lock(&mu_);
  return renewals_;
}

absl::Status MemoryStores::Available() {
  absl::MutexLock lock(&mu_);
  return away_ ? absl::UnavailableError("the store is away") : absl::OkStatus();
}

absl::StatusOr<MemoryStores::JobEntry*> MemoryStores::Find(const JobName& name) {
  const auto found = by_name_.find({name.project, name.job_id});
  if (found == by_name_.end()) {
    return absl::NotFoundError(absl::StrCat(FormatJobName(name), " does not exist"));
  }
  return &by_uid_.at(found->second);
}

absl::StatusOr<MemoryStores::JobEntry*> MemoryStores::FindUid(const std::string& uid) {
  const auto found = by_uid_.find(uid);
  if (found == by_uid_.end()) {
    return absl::NotFoundError(absl::StrCat("the job with uid ", uid, " does not exist"));
  }
  return &found->second;
}

SharedItems MemoryStores::Write(JobEntry& entry, const JobChange& change) {
  entry.changed = ++writes_;
  entry.job = change.job;
  SharedItems added = NumberedItems(static_cast<int64_t>(entry.feed.size()) + 1, change.feed);
  if (added == nullptr) return added;
  for (FeedRecord& item : SingleItems(*added)) entry.feed.push_back(std::move(item));
  return added;
}

std::vector<absl::StatusOr<JobRecord>> MemoryStores::SubmitMany(
    const std::vector<JobRecord>& jobs) {
  std::vector<absl::StatusOr<JobRecord>> answers;
  absl::Time now = Now();
  for (const JobRecord& job : jobs) {
    answers.push_back(Submit(job, now));
    now += absl::Microseconds(1);
  }
  return answers;
}

absl::StatusOr<JobRecord> MemoryStores::Submit(const JobRecord& job, absl::Time now) {
  TY_RETURN_IF_ERROR(Available());
  TY_ASSIGN_OR_RETURN(JobChange change, NewJob(job, now));
  absl::MutexLock lock(&mu_);
  const JobRecord& made = change.job;
  if (const auto same = by_uid_.find(made.uid); same != by_uid_.end()) {
    if (SameSubmission(job, same->second.job)) return same->second.job;
    return absl::AlreadyExistsError(absl::StrCat("uid ", made.uid, " is taken"));
  }
  const std::pair<std::string, std::string> request{job.project, job.request_id};
  if (const auto same = by_request_.find(request);
      !job.request_id.empty() && same != by_request_.end()) {
    const JobRecord& earlier = by_uid_.at(same->second).job;
    if (SameSubmission(job, earlier)) return earlier;
    return absl::AlreadyExistsError(absl::StrCat("request id '", job.request_id,
                                                 "' was used for job ", earlier.job_id,
                                                 ", which differs from this one"));
  }
  if (by_name_.count({made.project, made.job_id}) > 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(FormatJobName({made.project, made.job_id}), " exists already"));
  }
  TY_RETURN_IF_ERROR(CheckJobLimit(made.project));
  by_name_[{made.project, made.job_id}] = made.uid;
  if (!job.request_id.empty()) by_request_[request] = made.uid;
  Write(by_uid_[made.uid], change);
  return made;
}

absl::Status MemoryStores::CheckJobLimit(const std::string& project) {
  const auto found = projects_.find(project);
  if (found == projects_.end() || !found->second.max_jobs.has_value()) return absl::OkStatus();
  const auto live = std::count_if(by_uid_.begin(), by_uid_.end(), [&project](const auto& entry) {
    return entry.second.job.project == project && !IsTerminal(entry.second.job.state);
  });
  if (live < *found->second.max_jobs) return absl::OkStatus();
  return TooManyJobs(project, *found->second.max_jobs);
}

absl::StatusOr<JobRecord> MemoryStores::Get(const JobName& name) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, Find(name));
  return ForUsers(*entry);
}

JobRecord MemoryStores::ForUsers(const JobEntry& entry) {
  JobRecord job = entry.job;
  const auto attempt = entry.attempts.find(job.attempt);
  const bool holds = HoldsSlots(job.state) && attempt != entry.attempts.end();
  job.slots = holds ? attempt->second.world_size : 0;
  return job;
}

absl::StatusOr<JobPage> MemoryStores::List(const std::string& project,
                                           const std::vector<JobFilter>& filter, int page_size,
                                           const std::string& cursor) {
  TY_RETURN_IF_ERROR(Available());
  if (page_size < 1) return absl::InvalidArgumentError("page size: expected at least 1");
  TY_RETURN_IF_ERROR(CheckFilter(filter));
  TY_ASSIGN_OR_RETURN(const JobCursor after, ParseCursor(cursor));
  const auto key = [](const JobRecord& job) { return std::tie(job.create_time, job.uid); };
  JobPage page;
  absl::MutexLock lock(&mu_);
  for (const auto& [uid, entry] : by_uid_) {
    if (project != "-" && entry.job.project != project) continue;
    if (!(key(entry.job) < std::tie(after.create_time, after.uid))) continue;
    if (Matches(entry.job, filter)) page.jobs.push_back(ForUsers(entry));
  }
  std::sort(page.jobs.begin(), page.jobs.end(),
            [&key](const JobRecord& a, const JobRecord& b) { return key(b) < key(a); });
  if (page.jobs.size() > static_cast<size_t>(page_size)) {
    page.jobs.resize(page_size);
    page.next_cursor = FormatCursor(page.jobs.back());
  }
  return page;
}

absl::StatusOr<JobRecord> MemoryStores::Cancel(const JobName& name, int64_t version,
                                               const Reason& reason) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, Find(name));
  TY_ASSIGN_OR_RETURN(const JobChange change,
                      CancelJob(entry->job, AnyLost(*entry), version, reason, Now()));
  Write(*entry, change);
  return entry->job;
}

absl::StatusOr<JobRecord> MemoryStores::Pause(const JobName& name, int64_t version,
                                              const Reason& reason, absl::Duration grace) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, Find(name));
  TY_ASSIGN_OR_RETURN(const JobChange change, PauseJob(entry->job, version, reason, grace, Now()));
  Write(*entry, change);
  return entry->job;
}

absl::StatusOr<JobRecord> MemoryStores::Resume(const JobName& name, int64_t version,
                                               const Reason& reason) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, Find(name));
  TY_ASSIGN_OR_RETURN(const JobChange change, ResumeJob(entry->job, version, reason, Now()));
  Write(*entry, change);
  return entry->job;
}

absl::StatusOr<JobRecord> MemoryStores::SetSlotRange(const JobName& name, int64_t version,
                                                     const SlotRange& range,
                                                     const std::string& by) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, Find(name));
  TY_ASSIGN_OR_RETURN(const JobChange change,
                      trainyard::SetSlotRange(entry->job, version, range, by, Now()));
  Write(*entry, change);
  return entry->job;
}

absl::Status MemoryStores::Delete(const JobName& name, int64_t version) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, Find(name));
  TY_RETURN_IF_ERROR(CheckDeletable(entry->job, version));
  Forget(std::string(entry->job.uid));
  return absl::OkStatus();
}

void MemoryStores::Forget(const std::string& uid) {
  const JobRecord& job = by_uid_.at(uid).job;
  by_name_.erase({job.project, job.job_id});
  if (!job.request_id.empty()) by_request_.erase({job.project, job.request_id});
  by_uid_.erase(uid);
  deleted_.emplace_back(++writes_, uid);
}

absl::StatusOr<std::vector<FeedRecord>> MemoryStores::ReadFeed(const std::string& job_uid,
                                                               int64_t after, int limit) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, FindUid(job_uid));
  const int64_t size = static_cast<int64_t>(entry->feed.size());
  const int64_t from = std::clamp<int64_t>(after, 0, size);
  const int64_t to = std::min<int64_t>(size, from + std::max(limit, 0));
  return std::vector<FeedRecord>(entry->feed.begin() + from, entry->feed.begin() + to);
}

absl::StatusOr<std::vector<std::vector<FeedRecord>>> MemoryStores::ReadFeeds(
    const std::vector<FeedPosition>& positions, int limit) {
  std::vector<std::vector<FeedRecord>> feeds;
  for (const FeedPosition& position : positions) {
    absl::StatusOr<std::vector<FeedRecord>> items =
        ReadFeed(position.job_uid, position.after, limit);
    if (!items.ok() && !absl::IsNotFound(items.status())) return items.status();
    feeds.push_back(items.ok() ? *std::move(items) : std::vector<FeedRecord>());
  }
  return feeds;
}

absl::StatusOr<std::vector<FeedState>> MemoryStores::ReadFeedStates(
    const std::vector<std::string>& job_uids) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  std::vector<FeedState> states;
  for (const std::string& uid : job_uids) {
    FeedState& state = states.emplace_back();
    const auto found = by_uid_.find(uid);
    if (found == by_uid_.end()) continue;
    state = {.exists = true,
             .ended = IsTerminal(found->second.job.state),
             .newest = static_cast<int64_t>(found->second.feed.size())};
  }
  return states;
}

bool MemoryStores::Superseded(const JobEntry& entry, int64_t attempt, int64_t step) const {
  return std::any_of(entry.attempts.upper_bound(attempt), entry.attempts.end(),
                     [step](const auto& later) { return later.second.restore_step < step; });
}

absl::StatusOr<std::vector<MetricRow>> MemoryStores::ReadMetrics(const std::string& job_uid,
                                                                 const MetricQuery& query) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, FindUid(job_uid));
  const auto key = [](const MetricRow& row) {
    return std::make_tuple(row.point.step, row.point.split, row.attempt);
  };
  const auto after = std::make_tuple(query.after_step, query.after_split, query.after_attempt);
  std::vector<MetricRow> rows;
  for (const FeedRecord& item : entry->feed) {
    const auto* point = std::get_if<MetricRecord>(&item.what);
    if (point == nullptr || point->step < query.from_step || point->step > query.to_step) continue;
    if (!(point->split == MetricSplit::kTrain ? query.train : query.validation)) continue;
    MetricRow row{item.sequence, item.attempt, item.time, *point,
                  Superseded(*entry, item.attempt, point->step)};
    if (row.superseded && !query.include_superseded) continue;
    if (key(row) > after) rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(),
            [&key](const MetricRow& a, const MetricRow& b) { return key(a) < key(b); });
  if (rows.size() > static_cast<size_t>(std::max(query.limit, 0))) rows.resize(query.limit);
  return rows;
}

absl::StatusOr<std::vector<MetricBucket>> MemoryStores::ReadMetricBuckets(
    const std::string& job_uid, const MetricBucketQuery& query) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, FindUid(job_uid));
  int64_t newest = 0;
  for (const FeedRecord& item : entry->feed) {
    const auto* point = std::get_if<MetricRecord>(&item.what);
    if (point != nullptr) newest = std::max(newest, point->step);
  }
  const BucketRange range = RangeOf(query, newest);
  MetricCurves curves;
  for (const FeedRecord& item : entry->feed) {
    const auto* point = std::get_if<MetricRecord>(&item.what);
    if (point == nullptr || point->step < range.first_step || point->step > range.last_step ||
        Superseded(*entry, item.attempt, point->step)) {
      continue;
    }
    for (const auto& [name, value] : point->values) {
      if (!query.Wants(point->split, name)) continue;
      curves[{point->split, name}][(point->step - 1) / range.plan.width].Add(point->step, value);
    }
  }
  return BucketsOf(curves, range);
}

absl::StatusOr<std::vector<CheckpointRecord>> MemoryStores::ListCheckpoints(
    const std::string& job_uid) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, FindUid(job_uid));
  std::vector<CheckpointRecord> newest_first;
  for (auto it = entry->checkpoints.rbegin(); it != entry->checkpoints.rend(); ++it) {
    newest_first.push_back(it->second);
  }
  return newest_first;
}

}  // namespace trainyard
