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

// Renews the leases of all nodes of a server, because one statement costs about the same for one
// node as for many. A heartbeat that comes to a renewer at rest is not kept waiting for company;
// what comes within `every` of the last statement goes with the next one.
//
// Thread-safe; the store must outlive it.
class LeaseRenewer : public Actor {
 public:
  using Done = std::function<void(const absl::Status&)>;

  LeaseRenewer(TaskPool& pool, FleetStore& store, absl::Duration every)
      : Actor(pool), store_(store), every_(every) {}

  // Never blocks. `done` is called once, on a pool thread, with what FleetStore::RenewLeases says
  // of this one, and must not block.
  void Renew(LeaseRenewal renewal, Done done);

 private:
  struct Waiting {
    LeaseRenewal renewal;
    Done done;
  };

  void Work() override;
  void EndRestLater();

  FleetStore& store_;
  const absl::Duration every_;
  absl::Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  bool resting_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard
