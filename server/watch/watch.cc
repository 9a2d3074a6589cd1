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

}  // namespace

Watch::Watch(TaskPool& pool, JobStore& jobs, std::shared_ptr<FeedReader> reader,
             const WatchOptions& options, Open open, int64_t after, WatchSink& sink,
             std::function<void(Watch&)> finished)
    : Actor(pool),
      jobs_(jobs),
      options_(options),
      open_(std::move(open)),
      sink_(sink),
      reader_(std::move(reader)),
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

void Watch::LookAtClock(absl::Time now, absl::Time answered) {
  {
    absl::MutexLock lock(&mu_);
    if (sending_) {
      if (aborted_ || now - last_activity_ < options_.longest_write) return;
      abort_ = true;
    } else {
      // A heartbeat says that everything up to the cursor was sent, which nobody knows while the
      // store is away: a client that cannot wait sees that the stream is silent.
      if (!joined_ || heartbeat_ || now - last_activity_ < options_.heartbeat) return;
      if (now - answered > 2 * options_.heartbeat) return;
      heartbeat_ = true;
    }
  }
  Poke();
}

void Watch::Work() {
  if (finish_done_) return;
  const CallLimit limit(kUserCallLimit);
  bool heartbeat = false;
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
      dirty_ = heartbeat_ = false;
      if (heartbeat) last_activity_ = absl::Now();
    } else {
      return;
    }
  }
  if (abort) return sink_.Abort();
  if (end.has_value()) return Finish(*end);
  if (OpenOnce()) Pull(heartbeat);
}

bool Watch::OpenOnce() {
  if (open_done_) return true;
  absl::StatusOr<JobRecord> job = open_();
  if (!job.ok()) {
    Finish(job.status());
    return false;
  }
  job_ = {job->project, job->job_id};
  uid_ = job->uid;
  open_done_ = true;
  return true;
}

// A cursor that the feed has not reached is of another job, or made up: it would miss items in
// silence. The feed has no gaps and only grows, so its end is found by halving.
absl::Status Watch::CheckCursor() {
  const auto exists = [this](int64_t sequence) -> absl::StatusOr<bool> {
    TY_ASSIGN_OR_RETURN(const std::vector<FeedRecord> items, jobs_.ReadFeed(uid_, sequence - 1, 1));
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
      return absl::OutOfRangeError(absl::StrCat(
          "after_sequence: found ", cursor_, ", and the newest item of ", name(), " is ", newest));
    }
  }
  cursor_checked_ = true;
  return absl::OkStatus();
}

absl::StatusOr<FeedPiece> Watch::ReadOn(bool& again) {
  if (!cursor_checked_) TY_RETURN_IF_ERROR(CheckCursor());
  if (feed_ != nullptr) {
    FeedPiece piece = feed_->Take(cursor_, options_.batch);
    again = !piece.items.empty();
    if (piece.held || piece.gone) return piece;
  }
  FeedPiece piece;
  TY_ASSIGN_OR_RETURN(piece.items, jobs_.ReadFeed(uid_, cursor_, options_.batch));
  const int64_t reached = piece.items.empty() ? cursor_ : piece.items.back().sequence;
  if (feed_ != nullptr) {
    feed_->Move(cursor_, reached);
  } else if (static_cast<int>(piece.items.size()) < options_.batch) {
    // From here on hints wake this watch. The reader, which reads at once, finds what came between
    // the reading above and the join.
    feed_ = reader_->Join(job_, uid_, reached, this, [weak = weak_from_this()] {
      const auto self = std::static_pointer_cast<Watch>(weak.lock());
      if (self != nullptr) self->Wake();
    });
  }
  again = true;
  return piece;
}

void Watch::Pull(bool heartbeat) {
  bool again = false;
  absl::StatusOr<FeedPiece> piece = ReadOn(again);
  if (absl::IsUnavailable(piece.status())) {
    {
      absl::MutexLock lock(&mu_);
      dirty_ = true;
    }
    return PokeAfter(retry_.Next());
  }
  retry_.Reset();
  if (!piece.ok()) return Finish(piece.status());
  if (!piece->items.empty()) cursor_ = piece->items.back().sequence;
  if (piece->gone && piece->items.empty()) {
    return Finish(absl::NotFoundError(absl::StrCat(name(), " was deleted")));
  }
  WatchBatch batch{.job_name = name(), .items = std::move(piece->items), .sequence = cursor_};
  batch.ended = std::move(piece->ended);
  batch.heartbeat = heartbeat && batch.items.empty() && batch.ended == nullptr;
  last_sent_ = batch.ended != nullptr;
  const bool nothing = batch.items.empty() && !batch.heartbeat && !last_sent_;
  {
    absl::MutexLock lock(&mu_);
    joined_ = feed_ != nullptr;
    dirty_ |= again;
    if (!nothing) {
      sending_ = true;
      last_activity_ = absl::Now();
    }
  }
  if (nothing) {
    if (again) Poke();
    return;
  }
  if (!sink_.Send(std::move(batch))) Sent();
}

void Watch::Finish(const absl::Status& status) {
  finish_done_ = true;
  if (feed_ != nullptr) reader_->Leave(uid_, cursor_, this);
  feed_ = nullptr;
  finished_(*this);
  sink_.Finish(status);
}

}  // namespace trainyard
