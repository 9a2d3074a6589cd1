#include "server/work/call_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {

int64_t FairOrder::Weight(const QueuedCall& call) const {
  return std::max(call.bytes, options_.least_bytes);
}

void FairOrder::Forget(Lines::iterator line) {
  if (line->second.waiting.empty() && line->second.running == 0) lines_.erase(line);
}

std::vector<QueuedCall> FairOrder::Add(const std::string& principal, QueuedCall call) {
  Line& line = lines_[principal];
  line.bytes += Weight(call);
  bytes_ += Weight(call);
  line.waiting.push_back(std::move(call));
  std::vector<QueuedCall> refused;
  while (bytes_ > options_.most_waiting_bytes) {
    const auto longest = std::max_element(
        lines_.begin(), lines_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    std::deque<QueuedCall>& waiting = longest->second.waiting;
    const int64_t weight = Weight(waiting.back());
    longest->second.bytes -= weight;
    bytes_ -= weight;
    refused.push_back(std::move(waiting.back()));
    waiting.pop_back();
    Forget(longest);
  }
  return refused;
}

std::optional<FairOrder::Turn> FairOrder::Next() {
  auto next = lines_.end();
  for (auto line = lines_.begin(); line != lines_.end(); ++line) {
    const auto rank = [](const Line& l) { return std::make_tuple(l.running, l.served); };
    if (line->second.waiting.empty() || line->second.running >= options_.most_of_one) continue;
    if (next == lines_.end() || rank(line->second) < rank(next->second)) next = line;
  }
  if (next == lines_.end()) return std::nullopt;
  Line& line = next->second;
  Turn turn{next->first, std::move(line.waiting.front())};
  line.waiting.pop_front();
  line.bytes -= Weight(turn.call);
  bytes_ -= Weight(turn.call);
  line.running += 1;
  line.served = ++turns_;
  return turn;
}

void FairOrder::Done(const std::string& principal) {
  const auto line = lines_.find(principal);
  line->second.running -= 1;
  Forget(line);
}

CallQueue::CallQueue(const CallQueueOptions& options) : order_(options) {
  threads_.reserve(options.threads);
  for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Run(); });
}

void CallQueue::Post(const std::string& principal, QueuedCall call) {
  std::vector<QueuedCall> refused;
  bool stopping = false;
  {
    absl::MutexLock lock(&mu_);
    stopping = stopping_;
    if (stopping) {
      refused.push_back(std::move(call));
    } else {
      refused = order_.Add(principal, std::move(call));
      WakeOne();
    }
  }
  const absl::Status why =
      stopping ? absl::UnavailableError("server is draining")
               : absl::ResourceExhaustedError(
                     "too many calls wait here, most of them yours; try again in a moment");
  for (const QueuedCall& one : refused) one.refuse(why);
}

void CallQueue::Stop() {
  std::vector<QueuedCall> refused;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    while (!idle_.empty()) WakeOne();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  {
    absl::MutexLock lock(&mu_);
    while (std::optional<FairOrder::Turn> turn = order_.Next()) {
      order_.Done(turn->principal);
      refused.push_back(std::move(turn->call));
    }
  }
  for (const QueuedCall& one : refused) one.refuse(absl::UnavailableError("server is draining"));
}

void CallQueue::WakeOne() {
  if (idle_.empty()) return;
  idle_.back()->Signal();
  idle_.pop_back();
}

void CallQueue::Run() {
  absl::CondVar called;
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    std::optional<FairOrder::Turn> turn = order_.Next();
    if (!turn.has_value()) {
      idle_.push_back(&called);
      called.Wait(&mu_);
      std::erase(idle_, &called);  // it may have woken by itself
      continue;
    }
    mu_.Unlock();
    turn->call.run();
    turn->call = {};
    mu_.Lock();
    // One more of this principal may run now: this thread takes it, or one that is woken already.
    order_.Done(turn->principal);
  }
}

}  // namespace trainyard
