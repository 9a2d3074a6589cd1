#include "server/watch/watch_hub.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"

namespace trainyard {

WatchHub::WatchHub(JobStore& jobs, Wakeups& wakeups, TaskPool& pool, const WatchOptions& options)
    : jobs_(jobs),
      wakeups_(wakeups),
      pool_(pool),
      options_(options),
      state_(std::make_shared<State>()),
      reader_(std::make_shared<FeedReader>(pool, jobs, options.longest_retry)) {
  subscription_ = wakeups_.Subscribe([reader = reader_](const std::string& topic) {
    constexpr absl::string_view kPrefix = "job:";
    if (!absl::StartsWith(topic, kPrefix)) return;
    if (topic.size() == kPrefix.size()) {
      reader->WakeAll();
    } else {
      reader->Wake(topic.substr(kPrefix.size()));
    }
  });
  const absl::Duration period = std::min(options_.heartbeat / 20, absl::Seconds(1));
  const auto sweeps =
      static_cast<int>(std::clamp(absl::FDivDuration(options_.heartbeat, period), 1.0, 1e6));
  Sweep(state_, reader_, pool_, period, sweeps, 0);
}

WatchHub::~WatchHub() {
  wakeups_.Unsubscribe(subscription_);
  // Watches that have not ended and the state hold each other: this breaks the cycle. They are
  // destroyed outside the lock.
  decltype(state_->all) all;
  absl::MutexLock lock(&state_->mu);
  state_->gone = true;
  all.swap(state_->all);
}

std::shared_ptr<Watch> WatchHub::Make(Watch::Open open, int64_t after, WatchSink& sink) {
  // Destroys the hub's reference outside the lock.
  auto finished = [state = state_](Watch& watch) {
    std::shared_ptr<Watch> dropped;
    absl::MutexLock lock(&state->mu);
    const auto found = state->all.find(&watch);
    if (found == state->all.end()) return;
    dropped = found->second;
    state->all.erase(found);
  };
  return std::make_shared<Watch>(pool_, jobs_, reader_, options_, std::move(open), after, sink,
                                 std::move(finished));
}

void WatchHub::Begin(const std::shared_ptr<Watch>& watch) {
  std::optional<absl::Status> draining;
  {
    absl::MutexLock lock(&state_->mu);
    state_->all.emplace(watch.get(), watch);
    draining = state_->draining;
  }
  if (draining.has_value()) {
    watch->EndWith(*draining);
  } else {
    watch->Poke();
  }
}

void WatchHub::Offer(const std::string& job_uid, const SharedItems& items) {
  reader_->Offer(job_uid, items);
}

void WatchHub::EndAll(const absl::Status& status) {
  std::vector<std::shared_ptr<Watch>> all;
  {
    absl::MutexLock lock(&state_->mu);
    for (const auto& [pointer, entry] : state_->all) all.push_back(entry);
  }
  for (const auto& watch : all) watch->EndWith(status);
}

void WatchHub::Drain(const absl::Status& status) {
  {
    absl::MutexLock lock(&state_->mu);
    state_->draining = status;
  }
  EndAll(status);
}

int WatchHub::size() const {
  absl::MutexLock lock(&state_->mu);
  return static_cast<int>(state_->all.size());
}

void WatchHub::Sweep(const std::shared_ptr<State>& state, const std::shared_ptr<FeedReader>& reader,
                     TaskPool& pool, absl::Duration period, int sweeps_per_heartbeat, int sweeps) {
  std::vector<std::shared_ptr<Watch>> all;
  {
    absl::MutexLock lock(&state->mu);
    if (state->gone) return;
    all.reserve(state->all.size());
    for (const auto& [pointer, watch] : state->all) all.push_back(watch);
  }
  // A hint may be lost, and a deleted job sends none.
  if (!all.empty() && sweeps % sweeps_per_heartbeat == 0) reader->WakeAll();
  const absl::Time now = absl::Now();
  const absl::Time answered = reader->answered();
  for (const auto& watch : all) watch->LookAtClock(now, answered);
  pool.PostAfter(
      period, [=, &pool] { Sweep(state, reader, pool, period, sweeps_per_heartbeat, sweeps + 1); });
}

}  // namespace trainyard
