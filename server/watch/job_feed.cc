#include "server/watch/job_feed.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace trainyard {
namespace {

// About what an item takes in memory.
size_t BytesOf(const FeedRecord& item) {
  size_t bytes = sizeof(FeedRecord) + 64;
  if (const auto* metric = std::get_if<MetricRecord>(&item.what)) {
    bytes += metric->values.size() * 96;
  } else if (const auto* change = std::get_if<StateChangeRecord>(&item.what)) {
    bytes += change->reason.message.size();
  } else if (const auto* notice = std::get_if<NoticeRecord>(&item.what)) {
    bytes += notice->message.size();
  } else if (const auto* started = std::get_if<AttemptStartedRecord>(&item.what)) {
    bytes += started->nodes.size() * 64;
  } else if (const auto* checkpoint = std::get_if<CheckpointRecord>(&item.what)) {
    bytes += checkpoint->uri.size() + checkpoint->metrics.size() * 96;
  }
  return bytes;
}

}  // namespace

bool EndsJob(const FeedRecord& item) {
  const auto* change = std::get_if<StateChangeRecord>(&item.what);
  return change != nullptr && IsTerminal(change->to);
}

void JobFeed::Join(int64_t cursor) {
  absl::MutexLock lock(&mu_);
  ++cursors_[cursor];
  ended_ = nullptr;  // it may have been resumed since
}

void JobFeed::Move(int64_t from, int64_t to) {
  if (from == to) return;
  absl::MutexLock lock(&mu_);
  const auto left = cursors_.find(from);
  if (--left->second == 0) cursors_.erase(left);
  ++cursors_[to];
  Trim();
}

void JobFeed::Leave(int64_t cursor) {
  absl::MutexLock lock(&mu_);
  const auto left = cursors_.find(cursor);
  if (--left->second == 0) cursors_.erase(left);
  Trim();
}

FeedPiece JobFeed::Take(int64_t cursor, int limit) {
  FeedPiece piece;
  {
    absl::MutexLock lock(&mu_);
    piece.gone = gone_;
    const int64_t before = newest_ - static_cast<int64_t>(ring_.size());
    piece.held = cursor >= before;
    if (!piece.held) return piece;
    const auto have = std::max<int64_t>(newest_ - cursor, 0);
    const auto count = std::min<int64_t>(have, limit);
    const auto first = ring_.end() - have;
    piece.items.assign(first, first + count);
    if (count == have && cursor <= newest_) piece.ended = ended_;
  }
  if (!piece.items.empty()) Move(cursor, piece.items.back().sequence);
  return piece;
}

int64_t JobFeed::newest() const {
  absl::MutexLock lock(&mu_);
  return newest_;
}

Appended JobFeed::Append(std::vector<FeedRecord> items) {
  absl::MutexLock lock(&mu_);
  if (items.empty() || items.back().sequence <= newest_) return Appended::kKnown;
  if (items.front().sequence > newest_ + 1) return Appended::kGap;
  for (FeedRecord& item : items) {
    if (item.sequence <= newest_) continue;
    newest_ = item.sequence;
    bytes_ += BytesOf(item);
    ring_.push_back(std::move(item));
  }
  ended_ = nullptr;
  Trim();
  return Appended::kTaken;
}

bool JobFeed::SetEnded(std::shared_ptr<const JobRecord> ended, int64_t newest) {
  absl::MutexLock lock(&mu_);
  if (newest_ != newest) return false;
  ended_ = std::move(ended);
  return true;
}

void JobFeed::SetGone() {
  absl::MutexLock lock(&mu_);
  gone_ = true;
}

size_t JobFeed::held() const {
  absl::MutexLock lock(&mu_);
  return ring_.size();
}

void JobFeed::Trim() {
  const int64_t taken = cursors_.empty() ? newest_ : cursors_.begin()->first;
  while (!ring_.empty() &&
         (ring_.front().sequence <= taken || ring_.size() > kMostItems || bytes_ > kMostBytes)) {
    bytes_ -= BytesOf(ring_.front());
    ring_.pop_front();
  }
}

}  // namespace trainyard
