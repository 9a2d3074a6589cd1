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

// One job and whoever looks at it.
struct SimJob {
  JobName name;
  std::string uid;
  SimWatcher watcher;
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

  int jobs() const { return submitted_; }
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
  void DeleteEnded(size_t which);
  std::shared_ptr<const SchedulerSnapshot> Records();
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
  void CheckLosses(const std::vector<NodeRecord>& nodes);
  void CheckTurn(const SchedulerSnapshot& before, const SchedulerSnapshot& after,
                 const std::vector<NodeRecord>& judged);
  void CheckOrder(const SchedulerSnapshot& before, const JobRecord& placed,
                  const AttemptRecord& attempt, const std::map<std::string, const JobRecord*>& now);
  // What is still to be done, or went wrong: "" once everything that can run has run to its end,
  // left nothing behind, and told it all once.
  std::string LeftToDo();
  std::string WrongAtTheEndOf(const SimJob& job, const JobRecord& record);
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
  std::vector<std::unique_ptr<SimJob>> jobs_;  // not deleted yet
  bool away_ = false;
  bool settling_ = false;
  // The leader that judges leases, when it last did, and since when it has done so without a gap.
  const SchedulerLoop* leader_ = nullptr;
  int turns_ = 0;                     // whose loop gets its turns now
  std::optional<LeaseJudge> leases_;  // judges as the leader does
  absl::Time judged_;
  absl::Time judged_since_;
  int now_event_ = 0;
  int submitted_ = 0;
  int succeeded_ = 0;
  std::string breach_;
  // As of the last time that somebody wrote, and what was checked of it.
  std::shared_ptr<const SchedulerSnapshot> records_;
  std::pair<int64_t, int64_t> records_at_{-1, -1};
  int64_t checked_writes_ = -1;
  int64_t checked_moves_ = -1;
};

}  // namespace trainyard
