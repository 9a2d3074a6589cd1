#pragma once

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "server/fleet/fleet.h"
#include "server/scheduler/loop.h"
#include "server/watch/watch_hub.h"
#include "server/work/task_pool.h"
#include "storage/memory/memory_stores.h"
#include "tests/simulation/sim_agent.h"

namespace trainyard {

// Watches one job over and over: breaks off, resumes, is slow; notes any gap.
struct SimWatcher : WatchSink {
  bool Send(WatchBatch batch) override;
  void Abort() override {}
  void Finish(const absl::Status& status) override;

  std::string uid;
  std::shared_ptr<Watch> watch;
  int64_t cursor = 0;
  bool finished = true;
  bool owes_sent = false;
  bool ended = false;
  std::string wrong;
};

// A whole yard in one thread: real scheduler loops (two replicas), sessions and watches over the
// fake store; simulated agents, users and faults. Everything that happens is drawn from one seed.
class Yard {
 public:
  explicit Yard(uint64_t seed);
  ~Yard();

  // `events` random things, invariants after each; then all faults end, and every job must.
  // Returns the first broken invariant, or "".
  std::string Run(int events);

  int jobs() const { return static_cast<int>(names_.size()); }
  int succeeded() const { return succeeded_; }

 private:
  int Draw(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(int percent) { return Draw(100) < percent; }
  SimAgent& AnyAgent() { return *agents_[Draw(static_cast<int>(agents_.size()))]; }

  void OneEvent();
  void UserEvent();
  void AgentEvent();
  void FaultEvent();
  void WatchEvent();
  void SubmitSome();
  void StepSome(SimAgent& agent);
  void Pump(int tasks);
  void Advance(absl::Duration d);
  void Turn();
  void Heal();
  void HealedRound();

  // Invariants (invariants.cc). They note the first breach.
  void CheckAlways();
  void CheckProcesses();
  void CheckRecords();
  void CheckTurn(const SchedulerSnapshot& before, const SchedulerSnapshot& after);
  void CheckEnd();
  void Breach(const std::string& what);

  std::mt19937_64 random_;
  FakeClock clock_;
  MemoryStores stores_;
  TaskPool pool_;
  Fleet fleet_;
  WatchHub hub_;
  std::vector<std::unique_ptr<SchedulerLoop>> loops_;
  SimDisk disk_;
  std::vector<std::unique_ptr<SimAgent>> agents_;
  std::vector<JobName> names_;
  std::vector<std::unique_ptr<SimWatcher>> watchers_;
  bool away_ = false;
  bool settling_ = false;
  // The leader that judges leases, when it last did, and since when it has done so without a gap.
  const SchedulerLoop* leader_ = nullptr;
  int turns_ = 0;                     // whose loop gets its turns now
  std::optional<LeaseJudge> leases_;  // judges as the leader does
  absl::Time judged_;
  absl::Time judged_since_;
  int now_event_ = 0;
  int succeeded_ = 0;
  std::string breach_;
};

// Whether a slot could ever serve the job, and the test's own idea of who is ahead of whom.
bool SlotServes(const SlotRecord& slot, const JobRecord& job);
bool IsAhead(const JobRecord& a, const JobRecord& b);
bool NodeTakesWork(const NodeRecord& node, absl::Time now);

}  // namespace trainyard
