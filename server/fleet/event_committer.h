#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/work/actor.h"
#include "storage/fleet_store.h"

namespace trainyard {

// Is told of what was just stored in the feed of a job (AppendResult::items). Called on pool
// threads, for each feed in its order; must not block, and must live until the pool has stopped.
using FeedListener = std::function<void(const std::string& job_uid, const SharedItems& items)>;

// Commits the events of all agents of a server in groups, because a commit costs the same for one
// rank's events as for many. It never waits for a group to fill: it takes what came during the last
// commit. Each entry is durable before it is answered, and gets its own answer. The listener, if
// there is one, is told of a group before any of it is answered.
//
// Events of one rank are stored in the order in which they came. If the store is away, all entries
// that wait are answered with kUnavailable, so that none overtakes an earlier one of the same rank.
// Whoever sent them sends nothing more until all that it sent are answered, and then sends those
// again.
//
// Thread-safe; the store must outlive it.
class EventCommitter : public Actor {
 public:
  using Done = std::function<void(absl::StatusOr<AppendResult>)>;

  EventCommitter(TaskPool& pool, FleetStore& store, FeedListener listener = nullptr)
      : Actor(pool), store_(store), listener_(std::move(listener)) {}

  // Never blocks. `done` is called once, on a pool thread, and must not block.
  void Append(RankEvents events, Done done);

 private:
  struct Waiting {
    RankEvents events;
    Done done;
  };

  void Work() override;
  std::vector<Waiting> TakeGroup(size_t most_entries);

  FleetStore& store_;
  const FeedListener listener_;  // may be empty
  absl::Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
