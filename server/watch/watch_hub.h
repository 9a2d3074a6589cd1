#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/watch/watch.h"
#include "server/work/task_pool.h"
#include "storage/job_store.h"
#include "storage/wakeups.h"

namespace trainyard {

// All watchers of this server, and what wakes them: hints of the store and the clock. Thread-safe.
class WatchHub {
 public:
  WatchHub(JobStore& jobs, Wakeups& wakeups, TaskPool& pool, const WatchOptions& options);
  ~WatchHub();

  // A watch that does nothing yet: the sink has to know it before the first Send.
  std::shared_ptr<Watch> Make(Watch::Open open, int64_t after, WatchSink& sink);

  // It ends with sink.Finish; until then the sink may call Sent and Cancel on it.
  void Begin(const std::shared_ptr<Watch>& watch);

  // Ends every watch with `status`; others may begin.
  void EndAll(const absl::Status& status);

  // Ends every watch, also those that begin later, with `status`.
  void Drain(const absl::Status& status);

  int size() const;

 private:
  // Shared with the watches and with the pool's timers, which may run while the hub goes.
  struct State {
    mutable absl::Mutex mu;
    // By watch; the uid is empty until the job was found.
    std::unordered_map<Watch*, std::pair<std::shared_ptr<Watch>, std::string>> all
        ABSL_GUARDED_BY(mu);
    std::unordered_map<std::string, std::unordered_set<Watch*>> by_job ABSL_GUARDED_BY(mu);
    std::optional<absl::Status> draining ABSL_GUARDED_BY(mu);
    bool gone ABSL_GUARDED_BY(mu) = false;
  };

  static void Sweep(const std::shared_ptr<State>& state, TaskPool& pool, absl::Duration period);

  JobStore& jobs_;
  Wakeups& wakeups_;
  TaskPool& pool_;
  const WatchOptions options_;
  const std::shared_ptr<State> state_;
  int64_t subscription_ = 0;
};

}  // namespace trainyard
