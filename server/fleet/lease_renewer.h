#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/work/actor.h"
#include "storage/fleet_store.h"

namespace trainyard {

// Renews the leases of all nodes of a server together, because one statement costs about the same
// for one node as for many. A heartbeat that comes to an idle renewer is renewed at once; those
// that come soon after a statement go with the next one. The pause before it grows with the number
// of nodes, so that what all of them cost hardly grows.
//
// Thread-safe; the store must outlive it.
class LeaseRenewer : public Actor {
 public:
  // Bounds the pause, because a session takes its agent's messages in order: events wait behind a
  // heartbeat that waits for its renewal.
  static constexpr absl::Duration kLongestRest = absl::Milliseconds(100);

  using Done = std::function<void(const absl::Status&)>;

  // It rests for `rest_per_node` times the number of nodes, at most for kLongestRest.
  LeaseRenewer(TaskPool& pool, FleetStore& store, absl::Duration rest_per_node)
      : Actor(pool), store_(store), rest_per_node_(rest_per_node) {}

  // How many nodes are connected by now.
  void SetNodes(size_t nodes);

  // Never blocks. `done` is called once, on a pool thread, with what FleetStore::RenewLeases says
  // of this one, and must not block.
  void Renew(LeaseRenewal renewal, Done done);

 private:
  struct Waiting {
    LeaseRenewal renewal;
    Done done;
  };

  void Work() override;

  FleetStore& store_;
  const absl::Duration rest_per_node_;
  absl::Mutex mu_;
  size_t nodes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
