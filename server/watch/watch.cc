#include "server/watch/watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "storage/call_limit.h"

namespace trainyard {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(20);

bool EndsJob(const FeedRecord& item) {
  const auto* change = std::get_if<StateChangeRecord>(&item.what);
  return change != nullptr && IsTerminal(change->to);
}

}  // namespace

Watch::Watch(TaskPool& pool, JobStore& jobs, const WatchOptions& options, Open open, int64_t after,
             WatchSink& sink, std::function<void(Watch&, const std::string& uid)> opened,
             std::function<void(Watch&)> finished)
    : Actor(pool),
      jobs_(jobs),
      options_(options),
      open_(std::move(open)),
      sink_(sink),
      opened_(std::move(opened)),
      finished_(std::move(finished)),
      cursor_(after),
      retry_(kFirstRetry, options.longest_retry),
      last_activity_(absl::Now()) {}

void Watch::Wake() {
  {
    absl::MutexLock lock(&mu_);
    dirty_ = true;
    if (sending_) return;  // Sent looks again
  }
  Poke();
}

void Watch::Sent() {
  {
    absl::MutexLock lock(&mu_);
    sending_ = false;
    last_activity_ = absl::Now();
  }
  Poke();
}

void Watch::Cancel() {
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
  }
  Poke();
}

void Watch::EndWith(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (!end_.has_value()) end_ = status;
  }
  Poke();
}

void Watch::LookAtClock(absl::Time now) {
  {
    absl::MutexLock lock(&mu_);
    if (sending_) {
      if (aborted_ || now - last_activity_ < options_.longest_write) return;
      abort_ = true;
    } else {
      if (now - last_activity_ < options_.heartbeat) return;
      heartbeat_ = true;
      check_end_ = true;
    }
  }
  Poke();
}

void Watch::Work() {
  if (finish_done_) return;
  const CallLimit limit(kUserCallLimit);
  bool heartbeat = false;
  bool check_end = false;
  bool abort = false;
  std::optional<absl::Status> end;
  {
    absl::MutexLock lock(&mu_);
    if (cancelled_) {
      end = absl::CancelledError("the client left");
    } else if (abort_ && !aborted_) {
      abort = aborted_ = true;
    } else if (sending_) {
      return;
    } else if (last_sent_) {
      end = absl::OkStatus();
    } else if (end_.has_value()) {
      end = end_;
    } else if (dirty_ || heartbeat_) {
      heartbeat = heartbeat_;
      check_end = check_end_;
      dirty_ = heartbeat_ = check_end_ = false;
      if (heartbeat) last_activity_ = absl::Now();
    } else {
      return;
    }
  }
  if (abort) return sink_.Abort();
  if (end.has_value()) return Finish(*end);
  if (OpenOnce()) Pull(heartbeat, check_end);
}

bool Watch::OpenOnce() {
  if (open_done_) return true;
  absl::StatusOr<JobRecord> job = open_();
  if (!job.ok()) {
    Finish(job.status());
    return false;
  }
  job_ = *std::move(job);
  open_done_ = true;
  // From here on hints arrive; the pull that follows sees what happened before.
  opened_(*this, job_.uid);
  return true;
}

// The record is read before the feed: an ended job's feed does not grow unless it is resumed.
absl::Status Watch::LookForEnd(std::optional<JobRecord>& ended) {
  absl::StatusOr<JobRecord> job = jobs_.Get({job_.project, job_.job_id});
  if (absl::IsNotFound(job.status()) || (job.ok() && job->uid != job_.uid)) {
    return absl::NotFoundError(
        absl::StrCat("projects/", job_.project, "/jobs/", job_.job_id, " was deleted"));
  }
  TY_RETURN_IF_ERROR(job.status());
  if (IsTerminal(job->state)) ended = *std::move(job);
  return absl::OkStatus();
}

// A cursor that the feed has not reached is of another job, or made up: it would miss items in
// silence. The feed has no gaps and only grows, so its end is found by halving.
absl::Status Watch::CheckCursor() {
  const auto exists = [this](int64_t sequence) -> absl::StatusOr<bool> {
    TY_ASSIGN_OR_RETURN(const std::vector<FeedRecord> items,
                        jobs_.ReadFeed(job_.uid, sequence - 1, 1));
    return !items.empty();
  };
  if (cursor_ > 0) {
    TY_ASSIGN_OR_RETURN(const bool reached, exists(cursor_));
    if (!reached) {
      int64_t newest = 0;  // there, or 0
      for (int64_t missing = cursor_; missing - newest > 1;) {
        const int64_t middle = newest + (missing - newest) / 2;
        TY_ASSIGN_OR_RETURN(const bool there, exists(middle));
        (there ? newest : missing) = middle;
      }
      return absl::OutOfRangeError(absl::StrCat("after_sequence: found ", cursor_,
                                                ", and the newest item of projects/", job_.project,
                                                "/jobs/", job_.job_id, " is ", newest));
    }
  }
  cursor_checked_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FeedRecord>> Watch::ReadOn(bool check_end,
                                                      std::optional<JobRecord>& ended) {
  if (!cursor_checked_) TY_RETURN_IF_ERROR(CheckCursor());
  if (check_end) TY_RETURN_IF_ERROR(LookForEnd(ended));
  return jobs_.ReadFeed(job_.uid, cursor_, options_.batch);
}

void Watch::Pull(bool heartbeat, bool check_end) {
  std::optional<JobRecord> ended;
  absl::StatusOr<std::vector<FeedRecord>> items = ReadOn(check_end, ended);
  if (absl::IsUnavailable(items.status())) {
    // The stream stays open without heartbeats: a client that cannot wait sees that it is silent.
    {
      absl::MutexLock lock(&mu_);
      dirty_ = true;
      check_end_ = check_end_ || check_end;
    }
    return PokeAfter(retry_.Next());
  }
  retry_.Reset();
  if (!items.ok()) return Finish(items.status());

  WatchBatch batch{.job_name = absl::StrCat("projects/", job_.project, "/jobs/", job_.job_id),
                   .items = *std::move(items)};
  const bool full = static_cast<int>(batch.items.size()) >= options_.batch;
  const bool terminal = std::any_of(batch.items.begin(), batch.items.end(), EndsJob);
  if (!batch.items.empty()) cursor_ = batch.items.back().sequence;
  batch.sequence = cursor_;
  // Resumed between the two reads: the feed goes on after the end that the record told.
  const bool goes_on = !batch.items.empty() && !EndsJob(batch.items.back());
  if (!full && !goes_on) batch.ended = std::move(ended);
  batch.heartbeat = heartbeat && batch.items.empty() && !batch.ended.has_value();
  last_sent_ = batch.ended.has_value();
  {
    absl::MutexLock lock(&mu_);
    const bool again = terminal || (check_end && goes_on);
    if (full || again) dirty_ = true;
    if (again || (full && check_end)) check_end_ = true;
    if (batch.items.empty() && !batch.heartbeat && !last_sent_) return;
    sending_ = true;
    last_activity_ = absl::Now();
  }
  if (!sink_.Send(std::move(batch))) Sent();
}

void Watch::Finish(const absl::Status& status) {
  finish_done_ = true;
  finished_(*this);
  sink_.Finish(status);
}

}  // namespace trainyard
