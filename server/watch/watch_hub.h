#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/watch/feed_reader.h"
#include "server/watch/watch.h"
#include "server/work/task_pool.h"
#include "storage/job_store.h"
#include "storage/wakeups.h"

namespace trainyard {

// All watchers of this server, and what wakes them: what this server stores, and hints of the
// store, by way of the reader of their feeds, and the clock. Thread-safe.
class WatchHub {
 public:
  WatchHub(JobStore& jobs, Wakeups& wakeups, TaskPool& pool, const WatchOptions& options);
  ~WatchHub();

  // A watch that does nothing yet: the sink has to know it before the first Send.
  std::shared_ptr<Watch> Make(Watch::Open open, int64_t after, WatchSink& sink);

  // It ends with sink.Finish; until then the sink may call Sent and Cancel on it.
  void Begin(const std::shared_ptr<Watch>& watch);

  // `items` were added to the job's feed: what FeedReader::Offer takes. Wakes watchers, never
  // blocks.
  void Offer(const std::string& job_uid, const SharedItems& items);

  // Ends every watch with `status`; others may begin.
  void EndAll(const absl::Status& status);

  // Ends every watch, also those that begin later, with `status`.
  void Drain(const absl::Status& status);

  int size() const;

 private:
  // Shared with the watches and with the pool's timers, which may still run while the hub is
  // destroyed.
  struct State {
    mutable absl::Mutex mu;
    std::unordered_map<Watch*, std::shared_ptr<Watch>> all ABSL_GUARDED_BY(mu);
    std::optional<absl::Status> draining ABSL_GUARDED_BY(mu);
    bool gone ABSL_GUARDED_BY(mu) = false;
  };

  // Runs several times per heartbeat: all watches look at the clock, and once per heartbeat all
  // feeds are compared with the store.
  static void Sweep(const std::shared_ptr<State>& state, const std::shared_ptr<FeedReader>& reader,
                    TaskPool& pool, absl::Duration period, int sweeps_per_heartbeat, int sweeps);

  JobStore& jobs_;
  Wakeups& wakeups_;
  TaskPool& pool_;
  const WatchOptions options_;
  const std::shared_ptr<State> state_;
  const std::shared_ptr<FeedReader> reader_;  // of the watches too, which may outlive the hub
  int64_t subscription_ = 0;
};

}  // namespace trainyard
