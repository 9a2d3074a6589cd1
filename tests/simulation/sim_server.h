#pragma once

// One replica of the server: all that its process holds, over its own view of the store (SimStore).
// Destroyed when the process is killed.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/fleet/fleet.h"
#include "server/scheduler/loop.h"
#include "server/watch/watch_hub.h"
#include "server/work/task_pool.h"
#include "tests/simulation/sim_agent.h"
#include "tests/simulation/sim_clock.h"
#include "tests/simulation/sim_store.h"

namespace trainyard {

// How long a job may be STARTING: as short as a lease, so that now and then one leader looks on for
// long enough to end a start that hangs.
inline constexpr absl::Duration kSimStartLimit = absl::Seconds(8);

// What really happened, by which all replicas are judged.
struct SimTruth {
  SimTime time;
  std::map<std::string, absl::Duration> renewed;  // by node: when its lease was renewed last
  // When the store last came back after an absence that was longer than a LeaseJudge ignores.
  absl::Duration back_at = -absl::InfiniteDuration();
  int64_t losses = 0;  // of nodes
  std::function<void(const std::string&)> breach;
};

class SimServer : private SimStoreObserver {
 public:
  SimServer(MemoryStores& stores, SimFaults& faults, SimTruth& truth, Clock& clock,
            const std::string& holder, SimVersion version, std::function<void()> meanwhile);
  ~SimServer() override { pool_.Stop(); }

  SimVersion version() const { return version_; }
  SimStore& store() { return store_; }
  TaskPool& pool() { return pool_; }
  Fleet& fleet() { return fleet_; }
  WatchHub& hub() { return hub_; }
  SchedulerLoop& loop() { return loop_; }
  bool turning = false;  // its loop is having its turn

  // Nodes as its loop saw them last, with what is left of their leases: as it judges them.
  const std::vector<NodeRecord>& judged() const { return judged_; }
  absl::Duration judged_at() const { return answered_; }
  // Since when it has judged leases without a gap; InfiniteDuration: it does not judge.
  absl::Duration judges_since() const { return judges_since_; }

 private:
  void OnRenewed(const std::string& node) override { truth_.renewed[node] = truth_.time.now; }
  void OnLed(int64_t epoch) override;
  void OnSnapshot(const SchedulerSnapshot& snapshot) override;
  void BeforeApply(const Decisions& decisions) override;
  void AfterApply(const Decisions& decisions) override;
  void OnApplied() override;
  std::set<std::string> Reachable();

  MemoryStores& stores_;
  SimTruth& truth_;
  Clock& clock_;
  const SimVersion version_;
  SimStore store_;
  TaskPool pool_;
  Fleet fleet_;
  WatchHub hub_;
  SchedulerLoop loop_;

  std::optional<LeaseJudge> judge_;  // repeats what the loop's own judge does
  int64_t epoch_ = 0;
  std::vector<NodeRecord> judged_;
  absl::Duration answered_ = -absl::InfiniteDuration();
  absl::Duration judges_since_ = absl::InfiniteDuration();
  std::set<std::string> reachable_;  // names, before the decisions that are being applied
};

}  // namespace trainyard
