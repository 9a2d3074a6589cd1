#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/work/actor.h"
#include "storage/fleet_store.h"

namespace trainyard {

// Renews the leases of all nodes of a server, because one statement costs about the same for one
// node as for many. It never waits for company: it takes what gathered during the last statement.
//
// Thread-safe; the store must outlive it.
class LeaseRenewer : public Actor {
 public:
  using Done = std::function<void(const absl::Status&)>;

  LeaseRenewer(TaskPool& pool, FleetStore& store) : Actor(pool), store_(store) {}

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
  absl::Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
