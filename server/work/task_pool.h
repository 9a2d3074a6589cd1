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

namespace trainyard {

// Thread-safe. Tasks run in the order of Post, several at once. Tasks must not throw. What a task
// needs must live until Stop() returned, or be held by the task.
class TaskPool {
 public:
  explicit TaskPool(int threads);
  ~TaskPool() { Stop(); }
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  void Post(std::function<void()> task);
  void PostAfter(absl::Duration delay, std::function<void()> task);

  // Waits for running tasks and drops the rest. Idempotent. Not from a task.
  void Stop();

 private:
  void Run();

  absl::Mutex mu_;
  absl::CondVar changed_;
  std::deque<std::function<void()>> ready_ ABSL_GUARDED_BY(mu_);
  std::multimap<absl::Time, std::function<void()>> later_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace trainyard
