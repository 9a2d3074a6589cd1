#pragma once

// What a rank exchanges with others while it computes.

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace trainyard::engine {

// Runs tasks one after the other on a thread of its own. After one that fails none is run until
// Wait has returned its failure. All calls are for one thread.
class Lane {
 public:
  Lane();
  ~Lane() { End(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // What `task` reads and writes must stay until Wait returns. Returns its number: tasks are
  // numbered from 1, in the order in which they are started.
  int64_t Start(std::function<absl::Status()> task);

  // Whether task `number`, and so each before it, has ended, or was not run after a failure. True
  // of a number that is not above 0.
  bool Ended(int64_t number);
  // Waits until that is so. Whether the task failed is known to Failure.
  void WaitFor(int64_t number);

  // The first failure so far; Wait returns it, too.
  absl::Status Failure();

  // Waits for all tasks; the first failure among them.
  absl::Status Wait();

  // Waits for the task that runs; those behind it are dropped. Nothing else may be called then.
  void End();

 private:
  void Run();

  absl::Mutex mu_;
  std::deque<std::function<absl::Status()>> tasks_ ABSL_GUARDED_BY(mu_);
  int64_t started_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace trainyard::engine
