#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/fleet/provision/capacity_plan.h"
#include "server/fleet/provision/node_engine.h"
#include "server/fleet/provision/pools.h"
#include "server/fleet/provision/reconcile.h"
#include "server/scheduler/capacity_view.h"
#include "storage/base/clock.h"
#include "storage/stores.h"

namespace trainyard {

struct ProvisionerOptions {
  std::vector<Pool> pools;
  std::function<std::unique_ptr<NodeEngine>(const std::string& yard_id)> make_engine;
  // How often the engine is asked what it has: while nodes come or go, while there are some, and
  // while there are none.
  absl::Duration sweep_moving = absl::Seconds(1);
  absl::Duration sweep = absl::Seconds(5);
  absl::Duration sweep_idle = absl::Seconds(30);
  // After a failure of the engine, or of a node that did not come up; twice as long after each one
  // that follows.
  absl::Duration first_pause = absl::Seconds(2);
  absl::Duration longest_pause = absl::Minutes(10);
};

// Gets nodes for jobs that wait and gives back those that nobody needs: as leader only, since it
// acts on nothing but what passes of the leader offer. One thread. What is referred to outlives it.
class Provisioner {
 public:
  Provisioner(Stores& stores, Clock& clock, ProvisionerOptions options);
  ~Provisioner() { Stop(); }

  void Start();
  void Stop();  // after the command under way; idempotent

  // Thread-safe: whether the next pass is to offer what it left waiting.
  bool WantsCapacity();
  void Offer(CapacityView view);

  // One turn on the caller's thread, for the loop and for tests.
  absl::Status Turn(const CapacityView& view);

 private:
  void Run();
  bool stopping();
  void BeginEpoch(int64_t epoch);
  absl::Status Sweep(const CapacityView& view, std::vector<NodeRequest>& requests);
  // Stores what was found, and keeps it in `requests`.
  absl::Status Learn(const CapacityView& view, const Reconciled& found,
                     std::vector<NodeRequest>& requests);
  void ForgetFailures(const CapacityView& view, const std::vector<NodeRequest>& requests);
  absl::Status Settle(const CapacityView& view, const std::vector<NodeRequest>& requests);
  absl::Status EnsureWanted(const CapacityView& view, std::vector<NodeRequest>& requests);
  absl::Status EnsureAsk(const CapacityView& view, const Pool& pool, const std::string& ask,
                         const std::vector<int>& indices, std::vector<NodeRequest>& requests);
  absl::Status Ask(const CapacityView& view, const CapacityPlan& plan,
                   std::vector<NodeRequest>& requests);
  absl::Status Release(const CapacityPlan& plan, const std::vector<NodeRequest>& requests);
  void Failed(const std::string& pool, absl::Time now, const std::string& why);
  absl::Duration NextSweep(const CapacityView& view, const std::vector<NodeRequest>& requests);

  Stores& stores_;
  Clock& clock_;
  const ProvisionerOptions options_;

  // Used by the turns alone, and of one epoch of the leader.
  int64_t epoch_ = -1;
  std::unique_ptr<NodeEngine> engine_;
  std::map<std::string, PoolState> pools_;
  struct Failures {
    int in_a_row = 0;
    absl::Time last;
  };
  std::map<std::string, Failures> failures_;  // by pool
  std::map<std::string, absl::Time> idle_since_;
  bool swept_ = false;                              // the engine answered when it was asked last
  absl::Duration sweep_at_ = absl::ZeroDuration();  // on Clock::SinceBoot

  absl::Mutex mu_;
  absl::CondVar changed_;
  std::optional<CapacityView> offered_ ABSL_GUARDED_BY(mu_);
  bool dormant_ ABSL_GUARDED_BY(mu_) = false;  // no pool, and nothing that was ever asked for
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard
