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
      state_(std::make_shared<State>()) {
  subscription_ = wakeups_.Subscribe([state = state_](const std::string& topic) {
    constexpr absl::string_view kPrefix = "job:";
    if (!absl::StartsWith(topic, kPrefix)) return;
    std::vector<std::shared_ptr<Watch>> woken;
    {
      absl::MutexLock lock(&state->mu);
      if (topic.size() == kPrefix.size()) {
        for (const auto& [pointer, entry] : state->all) woken.push_back(entry.first);
      }
      const auto found = state->by_job.find(topic.substr(kPrefix.size()));
      if (found != state->by_job.end()) {
        for (Watch* watch : found->second) woken.push_back(state->all.at(watch).first);
      }
    }
    for (const auto& watch : woken) watch->Wake();
  });
  const absl::Duration period = std::min(options_.heartbeat / 20, absl::Milliseconds(250));
  pool_.PostAfter(period, [state = state_, &pool, period] { Sweep(state, pool, period); });
}

WatchHub::~WatchHub() {
  wakeups_.Unsubscribe(subscription_);
  absl::MutexLock lock(&state_->mu);
  state_->gone = true;
}

std::shared_ptr<Watch> WatchHub::Make(Watch::Open open, int64_t after, WatchSink& sink) {
  auto opened = [state = state_](Watch& watch, const std::string& uid) {
    absl::MutexLock lock(&state->mu);
    const auto found = state->all.find(&watch);
    if (found == state->all.end()) return;
    found->second.second = uid;
    state->by_job[uid].insert(&watch);
  };
  // Destroys the hub's reference outside the lock.
  auto finished = [state = state_](Watch& watch) {
    std::shared_ptr<Watch> dropped;
    absl::MutexLock lock(&state->mu);
    const auto found = state->all.find(&watch);
    if (found == state->all.end()) return;
    dropped = found->second.first;
    const auto job = state->by_job.find(found->second.second);
    if (job != state->by_job.end()) {
      job->second.erase(&watch);
      if (job->second.empty()) state->by_job.erase(job);
    }
    state->all.erase(found);
  };
  return std::make_shared<Watch>(pool_, jobs_, options_, std::move(open), after, sink,
                                 std::move(opened), std::move(finished));
}

void WatchHub::Begin(const std::shared_ptr<Watch>& watch) {
  std::optional<absl::Status> draining;
  {
    absl::MutexLock lock(&state_->mu);
    state_->all.emplace(watch.get(), std::make_pair(watch, std::string()));
    draining = state_->draining;
  }
  if (draining.has_value()) {
    watch->EndWith(*draining);
  } else {
    watch->Poke();
  }
}

void WatchHub::EndAll(const absl::Status& status) {
  std::vector<std::shared_ptr<Watch>> all;
  {
    absl::MutexLock lock(&state_->mu);
    for (const auto& [pointer, entry] : state_->all) all.push_back(entry.first);
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

void WatchHub::Sweep(const std::shared_ptr<State>& state, TaskPool& pool, absl::Duration period) {
  std::vector<std::shared_ptr<Watch>> all;
  {
    absl::MutexLock lock(&state->mu);
    if (state->gone) return;
    all.reserve(state->all.size());
    for (const auto& [pointer, entry] : state->all) all.push_back(entry.first);
  }
  const absl::Time now = absl::Now();
  for (const auto& watch : all) watch->LookAtClock(now);
  pool.PostAfter(period, [state, &pool, period] { Sweep(state, pool, period); });
}

}  // namespace trainyard
