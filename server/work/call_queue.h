#pragma once

// Runs calls of users, which may block, on a bounded number of threads: a user who sends many waits
// behind their own calls, not in front of those of others.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace trainyard {

struct CallQueueOptions {
  int threads = 32;
  int most_of_one = 24;  // threads that calls of one principal may hold at once
  int64_t most_waiting_bytes = int64_t{256} << 20;  // of all requests that wait
  int64_t least_bytes = int64_t{256} << 10;  // what a small one counts: so at most 1,024 of them
};

struct QueuedCall {
  int64_t bytes = 0;  // of its request
  std::function<void()> run;
  std::function<void(const absl::Status&)> refuse;  // instead of run; must not block
};

// The order of calls alone, without threads or clock. The next call is one of the waiting principal
// with the fewest calls running; among equals, of the one that was served longest ago. When the
// queue is full, the newest call of the principal that fills most of it is refused.
class FairOrder {
 public:
  explicit FairOrder(const CallQueueOptions& options) : options_(options) {}

  // Takes the call; returns the calls that have no place any more, which may be this one.
  std::vector<QueuedCall> Add(const std::string& principal, QueuedCall call);

  struct Turn {
    std::string principal;
    QueuedCall call;
  };
  std::optional<Turn> Next();  // it runs until Done
  void Done(const std::string& principal);

 private:
  struct Line {
    std::deque<QueuedCall> waiting;
    int64_t bytes = 0;
    int running = 0;
    int64_t served = 0;  // turn number of the last one
  };
  using Lines = std::map<std::string, Line>;  // those with a call waiting or running

  int64_t Weight(const QueuedCall& call) const;
  void Forget(Lines::iterator line);

  const CallQueueOptions options_;
  Lines lines_;
  int64_t bytes_ = 0;
  int64_t turns_ = 0;
};

// Thread-safe. What a call needs must live until it was run or refused.
class CallQueue {
 public:
  explicit CallQueue(const CallQueueOptions& options);
  ~CallQueue() { Stop(); }
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // Never blocks. Calls that have no place are refused with kResourceExhausted, on this thread.
  void Post(const std::string& principal, QueuedCall call);

  // Waits for running calls and refuses the rest with kUnavailable. Idempotent. Not from a call.
  void Stop();

 private:
  void Run();
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  // Threads without a call. The one that rested last goes first: its stack and its memory are still
  // in the caches, and who sends one call after the other stays with one thread.
  std::vector<absl::CondVar*> idle_ ABSL_GUARDED_BY(mu_);
  FairOrder order_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace trainyard
