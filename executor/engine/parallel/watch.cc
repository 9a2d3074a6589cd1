#include "executor/engine/parallel/watch.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/engine/parallel/sockets.h"
#include "executor/engine/parallel/wire.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr std::chrono::milliseconds kGoodbye(1000);

constexpr const char* kCollectives[] = {"exchange", "all-gather", "broadcast", "barrier"};

// Eight bytes: the number of calls in the upper ones, then the collective, then `inside`.
uint64_t Pack(const Whereabouts& whereabouts) {
  return whereabouts.calls << 3 | static_cast<uint64_t>(whereabouts.last) << 1 |
         (whereabouts.inside ? 1 : 0);
}

Whereabouts Unpack(uint64_t packed) {
  return {.calls = packed >> 3,
          .last = static_cast<Collective>(packed >> 1 & 3),
          .inside = (packed & 1) != 0};
}

int MillisecondsUntil(std::chrono::steady_clock::time_point until) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

}  // namespace

std::string Describe(const Whereabouts& whereabouts) {
  if (whereabouts.calls == 0) return "before its first collective";
  return absl::StrCat(whereabouts.inside ? "in " : "after ",
                      kCollectives[static_cast<size_t>(whereabouts.last)], " ", whereabouts.calls);
}

Watch::Watch(std::vector<WatchedRank> ranks, absl::Duration silence, int doorbell)
    : silence_(silence),
      heartbeat_(absl::ToChronoNanoseconds(std::min(absl::Seconds(1), silence / 4))),
      doorbell_(doorbell),
      left_(ranks.size()),
      ranks_(std::move(ranks)),
      heard_(ranks_.size(), std::chrono::steady_clock::now()),
      whereabouts_(ranks_.size()) {
  absl::StatusOr<FileDescriptor> wake = MakeDoorbell();
  TY_CHECK(wake.ok(), wake.status().ToString());
  wake_ = *std::move(wake);
  for (size_t r = 0; r < ranks_.size(); ++r) left_[r] = ranks_[r].left;
  if (ranks_.size() > 1) thread_ = std::thread([this] { Run(); });
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    ends_ = true;
  }
  RingDoorbell(wake_.get());
  thread_.join();
  SayGoodbye();
}

absl::Status Watch::Fail(absl::Status why) {
  absl::MutexLock lock(&mu_);
  FailLocked(std::move(why));
  return failure_;
}

absl::Status Watch::failure() const {
  absl::MutexLock lock(&mu_);
  return failure_;
}

void Watch::SetWhereabouts(const Whereabouts& mine) {
  mine_.store(Pack(mine), std::memory_order_relaxed);
}

Whereabouts Watch::whereabouts(int rank) const {
  absl::MutexLock lock(&mu_);
  return whereabouts_[rank];
}

void Watch::FailLocked(absl::Status why) {
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  // The others hear of it before this rank acts on it: if it ended now, they would name it instead.
  for (WatchedRank& rank : ranks_) {
    if (rank.link != nullptr) rank.link->Send(ControlKind::kFailure, EncodeStatus(failure_));
  }
  failed_.store(true, std::memory_order_release);
  RingDoorbell(doorbell_);
}

void Watch::Run() {
  Time next_heartbeat = std::chrono::steady_clock::now();
  Time before = next_heartbeat;
  for (;;) {
    WaitForNews(next_heartbeat);
    absl::MutexLock lock(&mu_);
    if (ends_) return;
    const Time now = std::chrono::steady_clock::now();
    if (now - before > 2 * heartbeat_) {
      for (Time& heard : heard_) heard += now - before;
    }
    before = now;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].link != nullptr && ranks_[r].link->open()) ReadLocked(r, now);
    }
    JudgeSilenceLocked(now);
    const bool beats = now >= next_heartbeat;
    if (beats) next_heartbeat = now + heartbeat_;
    std::string mine;
    AppendInteger(mine_.load(std::memory_order_relaxed), mine);
    for (WatchedRank& rank : ranks_) {
      if (rank.link == nullptr) continue;
      if (beats) rank.link->Send(ControlKind::kHeartbeat, mine);
      rank.link->Flush();
    }
  }
}

void Watch::WaitForNews(Time until) {
  std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
  {
    absl::MutexLock lock(&mu_);
    for (const WatchedRank& rank : ranks_) {
      if (rank.link == nullptr || !rank.link->open()) continue;
      const int events = POLLIN | (rank.link->has_unsent() ? POLLOUT : 0);
      waits.push_back({rank.link->fd(), static_cast<int16_t>(events), 0});
    }
  }
  poll(waits.data(), waits.size(), MillisecondsUntil(until));
}

void Watch::ReadLocked(size_t rank, Time now) {
  WatchedRank& from = ranks_[rank];
  std::vector<ControlMessage> messages;
  const absl::Status read = from.link->Read(messages);
  if (!messages.empty()) heard_[rank] = now;
  for (const ControlMessage& message : messages) {
    if (message.kind == ControlKind::kHeartbeat && message.body.size() == sizeof(uint64_t)) {
      absl::string_view body = message.body;
      whereabouts_[rank] = Unpack(ConsumeInteger<uint64_t>(body));
    } else if (message.kind == ControlKind::kFailure) {
      FailLocked(DecodeStatus(message.body));
    } else if (message.kind == ControlKind::kGoodbye) {
      left_[rank].store(true, std::memory_order_release);
      RingDoorbell(doorbell_);
    }
  }
  if (!read.ok()) {
    FailLocked(absl::Status(read.code(), absl::StrCat(from.name, " ", read.message())));
    from.link->Close();
  } else if (!from.link->open() && !left(static_cast<int>(rank))) {
    FailLocked(absl::UnavailableError(absl::StrCat(from.name, " ended")));
  }
}

void Watch::JudgeSilenceLocked(Time now) {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].link == nullptr || !ranks_[r].link->open() || left(static_cast<int>(r))) continue;
    if (now - heard_[r] < absl::ToChronoNanoseconds(silence_)) continue;
    FailLocked(absl::UnavailableError(
        absl::StrCat(ranks_[r].name, " is silent for ", absl::FormatDuration(silence_),
                     "; it was last heard of ", Describe(whereabouts_[r]))));
  }
}

void Watch::SayGoodbye() {
  absl::MutexLock lock(&mu_);
  const Time until = std::chrono::steady_clock::now() + kGoodbye;
  for (WatchedRank& rank : ranks_) {
    if (rank.link != nullptr) rank.link->Send(ControlKind::kGoodbye);
  }
  for (WatchedRank& rank : ranks_) {
    while (rank.link != nullptr && rank.link->has_unsent()) {
      pollfd wait{rank.link->fd(), POLLOUT, 0};
      if (poll(&wait, 1, MillisecondsUntil(until)) <= 0) break;
      rank.link->Flush();
    }
  }
}

}  // namespace trainyard::engine
