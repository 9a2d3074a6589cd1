#pragma once

// A few threads that do what may block: store calls on behalf of many streams.

#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/clock.h"

namespace trainyard {

// Thread-safe. Tasks run in the order of Post, several at once. Tasks must not throw. What a task
// needs must live until Stop() returned, or be held by the task.
class TaskPool {
 public:
  // With 0 threads tasks run in RunOne only. `clock` tells when a later task is due; threads wait
  // on the machine's clock.
  explicit TaskPool(int threads, Clock& clock = SystemClock());
  ~TaskPool() { Stop(); }
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  void Post(std::function<void()> task);
  void PostAfter(absl::Duration delay, std::function<void()> task);

  // Runs one task that is due on the caller's thread, and returns whether there was one:
  // simulations move on by this alone.
  bool RunOne();

  // Waits for running tasks and drops the rest. Idempotent. Not from a task.
  void Stop();

 private:
  void Run();
  void TakeDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes a thread, unless one that was woken has not looked yet: that one wakes the next if it
  // leaves more to do. Many short tasks that come at once are thereby run by a few threads, instead
  // of one each.
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Rest(absl::CondVar& called) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock& clock_;
  absl::Mutex mu_;
  // Threads without a task. The one that rested last goes first: its memory is still in the caches.
  std::vector<absl::CondVar*> idle_ ABSL_GUARDED_BY(mu_);
  // The idle one that waits for the next later task, in place of all of them.
  absl::CondVar* timekeeper_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool on_its_way_ ABSL_GUARDED_BY(mu_) = false;  // a thread was called and has not looked yet
  std::deque<std::function<void()>> ready_ ABSL_GUARDED_BY(mu_);
  std::multimap<absl::Time, std::function<void()>> later_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace trainyard
