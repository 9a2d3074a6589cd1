#include "server/api/log_tail.h"

#include <algorithm>
#include <utility>

#include "storage/call_limit.h"

namespace trainyard {

LogTail::LogTail(TaskPool& pool, Fleet& fleet, Open open, const LogTailOptions& options,
                 LogSink& sink)
    : Actor(pool),
      fleet_(fleet),
      open_(std::move(open)),
      options_(options),
      sink_(sink),
      offset_(-options.last_bytes) {}

void LogTail::Sent() {
  {
    absl::MutexLock lock(&mu_);
    busy_ = false;
  }
  Poke();
}

void LogTail::EndWith(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (!end_.has_value()) end_ = status;
  }
  Poke();
}

void LogTail::Work() {
  if (finished_) return;
  const CallLimit limit(kUserCallLimit);
  std::optional<absl::Status> end;
  std::optional<absl::StatusOr<LogPiece>> answer;
  {
    absl::MutexLock lock(&mu_);
    end = end_;
    if (!end.has_value() && answer_.has_value()) {
      answer = std::move(answer_);
      answer_.reset();
      busy_ = false;
    }
    if (!end.has_value() && busy_) return;
  }
  if (end.has_value()) return Finish(*end);
  if (!rank_.has_value()) {
    absl::StatusOr<RankRecord> rank = open_();
    if (!rank.ok()) return Finish(rank.status());
    rank_ = *std::move(rank);
    return Ask();
  }
  if (!answer.has_value()) return last_ ? Finish(absl::OkStatus()) : Ask();
  if (!answer->ok()) return Finish(answer->status());
  Take(**answer);
}

void LogTail::Ask() {
  int64_t bytes = options_.piece_bytes;
  // Without follow no more is sent than was asked for, however fast the log grows.
  if (!options_.follow) bytes = std::min(bytes, options_.last_bytes - sent_bytes_);
  {
    absl::MutexLock lock(&mu_);
    busy_ = true;
  }
  fleet_.ReadLog(*rank_, offset_, bytes, [weak = weak_from_this()](absl::StatusOr<LogPiece> piece) {
    const auto self = std::static_pointer_cast<LogTail>(weak.lock());
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mu_);
      self->answer_ = std::move(piece);
    }
    self->Poke();
  });
}

void LogTail::Take(const LogPiece& piece) {
  offset_ = piece.offset + static_cast<int64_t>(piece.data.size());
  sent_bytes_ += static_cast<int64_t>(piece.data.size());
  last_ =
      piece.end || (!options_.follow && (piece.data.empty() || sent_bytes_ >= options_.last_bytes));
  if (piece.data.empty() && last_) return Finish(absl::OkStatus());
  {
    absl::MutexLock lock(&mu_);
    busy_ = true;
  }
  if (!piece.data.empty()) return sink_.Send(*rank_, piece);
  pool().PostAfter(options_.pause, [weak = weak_from_this()] {
    const auto self = std::static_pointer_cast<LogTail>(weak.lock());
    if (self != nullptr) self->Sent();
  });
}

void LogTail::Finish(const absl::Status& status) {
  finished_ = true;
  sink_.Finish(status);
}

}  // namespace trainyard
