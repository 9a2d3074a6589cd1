#pragma once

// What a rank exchanges with others while it computes.

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace trainyard::engine {

// Runs tasks one after the other on a thread of its own. After one that fails none is run until
// Wait has returned its failure. Start and Wait are for one thread.
class Lane {
 public:
  Lane();
  ~Lane();  // waits for the task that runs; those behind it are dropped
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // What `task` reads and writes must stay until Wait returns.
  void Start(std::function<absl::Status()> task);

  // Waits for all tasks; the first failure among them.
  absl::Status Wait();

 private:
  void Run();

  absl::Mutex mu_;
  std::deque<std::function<absl::Status()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace trainyard::engine
