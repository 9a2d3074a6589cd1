#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/work/actor.h"
#include "storage/fleet_store.h"

namespace trainyard {

// Commits the events of all agents of a server in groups, because a commit costs the same for one
// rank's events as for many. It never waits for company: it takes what gathered during the last
// commit. Each is durable before it is answered, and answered for itself.
//
// Events of one rank are stored in the order in which they came. While the store is away all that
// wait are answered with kUnavailable, so that none overtakes an earlier one of the same rank:
// whoever sent them sends no more until all that it sent are answered, and then those again.
//
// Thread-safe; the store must outlive it.
class EventCommitter : public Actor {
 public:
  using Done = std::function<void(absl::StatusOr<AppendResult>)>;

  EventCommitter(TaskPool& pool, FleetStore& store) : Actor(pool), store_(store) {}

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
  absl::Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
