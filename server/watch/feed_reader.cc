#include "server/watch/feed_reader.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "storage/call_limit.h"

namespace trainyard {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr size_t kMostFeeds = 256;      // in one call of the store
constexpr size_t kMostCompared = 2000;  // likewise: a number of each is read, no items
constexpr int kBatch = 256;             // items of one feed

}  // namespace

FeedReader::FeedReader(TaskPool& pool, JobStore& jobs, absl::Duration longest_retry)
    : Actor(pool), jobs_(jobs), retry_(kFirstPause, longest_retry) {}

std::shared_ptr<JobFeed> FeedReader::Join(const JobName& name, const std::string& uid,
                                          int64_t cursor, const void* watcher,
                                          std::function<void()> wake) {
  std::shared_ptr<JobFeed> feed;
  {
    absl::MutexLock lock(&mu_);
    Watched& watched = feeds_[uid];
    if (watched.feed == nullptr) {
      watched.name = name;
      watched.feed = std::make_shared<JobFeed>(cursor);
    }
    feed = watched.feed;
    feed->Join(cursor);
    watched.watchers[watcher] = std::move(wake);
    Mark(uid, /*check_end=*/true);
  }
  Poke();
  return feed;
}

void FeedReader::Leave(const std::string& uid, int64_t cursor, const void* watcher) {
  absl::MutexLock lock(&mu_);
  const auto found = feeds_.find(uid);
  if (found == feeds_.end() || found->second.watchers.erase(watcher) == 0) return;
  found->second.feed->Leave(cursor);
  if (found->second.watchers.empty()) feeds_.erase(found);
}

void FeedReader::Offer(const std::string& uid, const SharedItems& items) {
  std::shared_ptr<JobFeed> feed;
  {
    absl::MutexLock lock(&mu_);
    const auto found = feeds_.find(uid);
    if (found == feeds_.end()) return;  // whoever joins later has it read
    feed = found->second.feed;
  }
  const bool ends = std::any_of(items->begin(), items->end(), EndsJob);
  const Appended appended = ends ? Appended::kGap : feed->Append(SingleItems(*items));
  if (appended == Appended::kKnown) return;
  if (appended == Appended::kTaken) return WakeWatchers({uid});
  {
    absl::MutexLock lock(&mu_);
    Mark(uid, /*check_end=*/ends);
  }
  Poke();
}

void FeedReader::Wake(const std::string& uid) {
  {
    absl::MutexLock lock(&mu_);
    if (feeds_.count(uid) == 0) return;
    Mark(uid, /*check_end=*/false);
  }
  Poke();
}

void FeedReader::WakeAll() {
  {
    absl::MutexLock lock(&mu_);
    compare_ = true;
  }
  Poke();
}

absl::Time FeedReader::answered() const {
  absl::MutexLock lock(&mu_);
  return answered_;
}

void FeedReader::Mark(const std::string& uid, bool check_end) {
  const auto found = feeds_.find(uid);
  if (found == feeds_.end()) return;
  found->second.check_end |= check_end;
  if (std::exchange(found->second.waits, true)) return;
  waiting_.push_back(uid);
}

void FeedReader::Work() {
  const CallLimit limit(kUserCallLimit);
  bool compare = false;
  {
    absl::MutexLock lock(&mu_);
    compare = std::exchange(compare_, false);
  }
  absl::Status status = compare ? CompareAll() : absl::OkStatus();
  if (!status.ok()) {
    absl::MutexLock lock(&mu_);
    compare_ = true;
  } else {
    std::vector<Reading> feeds = TakeWaiting();
    if (!feeds.empty()) status = Read(feeds);
    if (!status.ok()) {
      absl::MutexLock lock(&mu_);
      for (const Reading& reading : feeds) Mark(reading.uid, reading.check_end);
    }
  }
  // Whatever went wrong may be over the next time; watchers see that no heartbeat comes.
  if (!status.ok()) return Rest(retry_.Next());
  retry_.Reset();
  absl::MutexLock lock(&mu_);
  if (!waiting_.empty()) Poke();
}

std::vector<FeedReader::Reading> FeedReader::TakeWaiting() {
  std::vector<Reading> feeds;
  absl::MutexLock lock(&mu_);
  const size_t count = std::min(waiting_.size(), kMostFeeds);
  for (size_t i = 0; i < count; ++i) {
    const auto found = feeds_.find(waiting_[i]);
    if (found == feeds_.end() || !found->second.waits) continue;
    Watched& watched = found->second;
    feeds.push_back({.uid = waiting_[i],
                     .name = watched.name,
                     .feed = watched.feed,
                     .check_end = watched.check_end});
    watched.waits = watched.check_end = false;
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<int64_t>(count));
  return feeds;
}

// Which feeds go further than what was read of them, or are of jobs that ended or are gone.
absl::Status FeedReader::CompareAll() {
  const absl::Time begin = absl::Now();
  std::vector<std::string> uids;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [uid, watched] : feeds_) uids.push_back(uid);
  }
  for (size_t from = 0; from < uids.size(); from += kMostCompared) {
    const std::vector<std::string> some(
        uids.begin() + static_cast<int64_t>(from),
        uids.begin() + static_cast<int64_t>(std::min(uids.size(), from + kMostCompared)));
    TY_ASSIGN_OR_RETURN(const std::vector<FeedState> states, jobs_.ReadFeedStates(some));
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < some.size(); ++i) {
      const auto found = feeds_.find(some[i]);
      if (found == feeds_.end()) continue;
      if (!states[i].exists || states[i].ended ||
          states[i].newest > found->second.feed->newest()) {  // more may be offered meanwhile
        Mark(some[i], /*check_end=*/true);
      }
    }
  }
  absl::MutexLock lock(&mu_);
  answered_ = begin;
  return absl::OkStatus();
}

// The record is read before the feed: an ended job's feed does not grow unless it is resumed.
absl::Status FeedReader::LookForEnds(std::vector<Reading>& feeds) {
  std::vector<std::string> uids;
  std::vector<Reading*> checked;
  for (Reading& reading : feeds) {
    if (!reading.check_end) continue;
    uids.push_back(reading.uid);
    checked.push_back(&reading);
  }
  if (uids.empty()) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(const std::vector<FeedState> states, jobs_.ReadFeedStates(uids));
  for (size_t i = 0; i < uids.size(); ++i) {
    checked[i]->gone = !states[i].exists;
    if (!states[i].ended) continue;
    absl::StatusOr<JobRecord> job = jobs_.Get(checked[i]->name);
    if (absl::IsNotFound(job.status()) || (job.ok() && job->uid != uids[i])) {
      checked[i]->gone = true;
      continue;
    }
    TY_RETURN_IF_ERROR(job.status());
    if (IsTerminal(job->state)) {
      checked[i]->ended = std::make_shared<const JobRecord>(*std::move(job));
    }
  }
  return absl::OkStatus();
}

absl::Status FeedReader::Read(std::vector<Reading>& feeds) {
  TY_RETURN_IF_ERROR(LookForEnds(feeds));
  std::vector<FeedPosition> positions;
  for (const Reading& reading : feeds) positions.push_back({reading.uid, reading.feed->newest()});
  TY_ASSIGN_OR_RETURN(std::vector<std::vector<FeedRecord>> pieces,
                      jobs_.ReadFeeds(positions, kBatch));
  std::vector<std::string> woken;
  for (size_t i = 0; i < feeds.size(); ++i) {
    Reading& reading = feeds[i];
    const std::vector<FeedRecord>& items = pieces[i];
    const bool full = static_cast<int>(items.size()) >= kBatch;
    const bool terminal = std::any_of(items.begin(), items.end(), EndsJob);
    // Resumed between the two reads: the feed goes on after the end that the record told.
    const bool goes_on = !items.empty() && !EndsJob(items.back());
    const bool ended = reading.ended != nullptr && !full && !goes_on;
    if (full || (terminal && !ended) || (reading.ended != nullptr && !ended)) {
      absl::MutexLock lock(&mu_);
      Mark(reading.uid, terminal || reading.check_end);
    }
    const int64_t reached = items.empty() ? positions[i].after : items.back().sequence;
    if (reading.gone) reading.feed->SetGone();
    if (!items.empty() || ended || reading.gone) woken.push_back(reading.uid);
    // Some of them, or more, may have been offered since.
    reading.feed->Append(std::move(pieces[i]));
    if (ended && !reading.feed->SetEnded(reading.ended, reached)) {
      absl::MutexLock lock(&mu_);
      Mark(reading.uid, /*check_end=*/true);
    }
  }
  WakeWatchers(woken);
  return absl::OkStatus();
}

void FeedReader::WakeWatchers(const std::vector<std::string>& uids) {
  std::vector<std::function<void()>> wakes;
  {
    absl::MutexLock lock(&mu_);
    for (const std::string& uid : uids) {
      const auto found = feeds_.find(uid);
      if (found == feeds_.end()) continue;
      for (const auto& [watcher, wake] : found->second.watchers) wakes.push_back(wake);
    }
  }
  for (const auto& wake : wakes) wake();
}

}  // namespace trainyard
