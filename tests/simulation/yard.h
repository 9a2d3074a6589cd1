#pragma once

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "storage/memory/memory_stores.h"
#include "tests/simulation/sim_agent.h"
#include "tests/simulation/sim_clock.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_store.h"

namespace trainyard {

// Watches one job over and over: breaks off, resumes, is slow at times; notes any gap.
struct SimWatcher : WatchSink {
  bool Send(WatchBatch batch) override;
  void Abort() override {}
  void Finish(const absl::Status& status) override;
  // Its server is gone: the watch ends without a word.
  void BreakOff();

  std::string uid;
  std::shared_ptr<Watch> watch;  // shared with the hub of `server`
  const SimServer* server = nullptr;
  int64_t cursor = 0;
  bool finished = true;
  bool owes_sent = false;
  bool ended = false;
  std::string wrong;
};

// One job and its watcher.
struct SimJob {
  JobName name;
  std::string uid;
  SimWatcher watcher;
};

// A whole yard in one thread: two replicas of the real server (scheduler loop, agent sessions,
// watches) over the fake store; simulated agents, users and faults. Each machine has a clock of its
// own. Everything that happens is drawn from one seed.
class Yard : private SimStoreObserver {
 public:
  explicit Yard(uint64_t seed);
  ~Yard() override;

  // Makes `events` random events and checks the invariants after each; then all faults stop, and
  // every job must end. Returns the first broken invariant, or "".
  std::string Run(int events);

  // How often each kind of thing happened: a yard in which one never happened does not test it.
  std::map<std::string, int64_t> Tally() const;

 private:
  int Draw(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(int percent) { return Draw(100) < percent; }
  SimAgent& AnyAgent() { return *agents_[Draw(static_cast<int>(agents_.size()))]; }
  SimServer& AnyServer() { return *servers_[Draw(2)]; }
  const SimJob& AnyJob() { return *jobs_[Draw(static_cast<int>(jobs_.size()))]; }
  absl::Duration AnyOffset();
  SimClock NewClock();
  void DrawArithmetic();

  // yard_events.cc
  void OneEvent();
  void CalmEvent();
  void UserEvent();
  void AgentEvent();
  void FaultEvent();
  void CutOff();
  void AgentFault();
  void WatchEvent();
  void SubmitSome();
  void DeleteEnded(size_t which);
  void SetRange(const SimJob& job);
  void StepSome(SimAgent& agent);
  void AddTwin();
  void LookAtMachines();
  void KillServer(int which);
  void StoreFails();
  void SetAway(bool away);
  // Others do something while server `calling` is within a call to the store.
  void Meanwhile(int calling);

  void StartServer(int which, SimVersion version);
  std::shared_ptr<const SchedulerSnapshot> Records();
  void Pump(int tasks);
  void Advance(absl::Duration d);
  void Turn();
  void TurnOf(SimServer& server);
  // Whatever there is to say between an agent and a server is said, and its processes make steps.
  void GetOn(SimAgent& agent);
  void Heal();
  void HealedRound();

  // The observer of the users' client ignores everything: leases do not depend on users.
  void OnRenewed(const std::string&) override {}
  void OnLed(int64_t) override {}
  void OnSnapshot(const SchedulerSnapshot&) override {}
  void BeforeApply(const Decisions&) override {}
  void AfterApply(const Decisions&) override {}
  void OnApplied() override {}

  // Invariants (invariants.cc). They note the first breach.
  void CheckAlways();
  void CheckProcesses();
  void CheckProcess(const SimAgent& agent, const RankId& rank);
  void CheckCancelled(const RankId& rank, const RankRecord& record);
  void CheckRecords();
  void CheckLosses(const SimServer& server, const std::vector<NodeRecord>& nodes);
  void CheckStarts(const SimServer& server, const SchedulerSnapshot& snapshot);
  // Whether this turn cordoned a node for its failures.
  bool CheckCordons(const SchedulerSnapshot& before, const SchedulerSnapshot& after,
                    const std::vector<NodeRecord>& judged, bool alone);
  void CheckBudget(const JobRecord& job);
  void CheckTurn(const SchedulerSnapshot& before, const SchedulerSnapshot& after,
                 const std::vector<NodeRecord>& judged);
  void CheckDisks(const SchedulerSnapshot& after);
  void CheckSlots(const JobRecord& job, const AttemptRecord& attempt);
  void CheckArithmetic(const SchedulerSnapshot& snapshot, const JobRecord& job,
                       const AttemptRecord& attempt);
  void CheckSurplus(const SchedulerSnapshot& after, const std::vector<NodeRecord>& judged,
                    const JobRecord& waits);
  // Whether the limit of its project may keep the job waiting; `without_surplus`: also once others
  // of the project have given up what they should for it.
  static bool MayBeLimited(const SchedulerSnapshot& snapshot, const JobRecord& job,
                           bool without_surplus);
  void CheckLimits(const SchedulerSnapshot& before, const SchedulerSnapshot& after);
  void SetLimit();
  void CountResizes(const SchedulerSnapshot& after);
  void CheckOrder(const SchedulerSnapshot& before, const std::vector<NodeRecord>& judged,
                  const JobRecord& placed, const AttemptRecord& attempt,
                  const std::map<std::string, const JobRecord*>& now);
  // What is still to be done, or went wrong: "" once everything that can run has run to its end,
  // left nothing behind, and told it all once.
  std::string LeftToDo();
  std::string WrongAtTheEndOf(const SimJob& job, const JobRecord& record);
  // How often an attempt of the job that had been lost went on where it was.
  int64_t RejoinsOf(const SimJob& job);
  void Breach(const std::string& what);

  std::mt19937_64 random_;
  SimTruth truth_;
  SimFaults faults_;
  SimClock store_clock_;
  MemoryStores stores_;
  SimStore users_;
  SimClock machines_[2];  // of the servers
  std::unique_ptr<SimServer> servers_[2];
  int processes_ = 0;  // how many processes of the server were started
  SimStorage storage_;
  std::vector<std::unique_ptr<SimAgent>> agents_;
  std::vector<std::unique_ptr<SimJob>> jobs_;  // not deleted yet
  bool away_ = false;
  absl::Duration away_since_;
  bool settling_ = false;
  bool within_ = false;  // inside a call to the store, while others have their turn
  std::map<std::string, int64_t> faults_seen_;
  int64_t interleaved_ = 0;  // how often others ran within a call
  int turns_ = 0;            // which server's loop gets the turns now
  int calm_events_ = 0;      // that are still to come before anything goes wrong again
  size_t gets_on_ = 0;       // which agent does then
  int now_event_ = 0;
  int submitted_ = 0;
  int succeeded_ = 0;
  int64_t rejoins_ = 0;
  std::string breach_;
  // The records as of the last write, and what was checked of them.
  std::shared_ptr<const SchedulerSnapshot> records_;
  std::pair<int64_t, int64_t> records_at_{-1, -1};
  int64_t checked_writes_ = -1;
  int64_t checked_moves_ = -1;
  // By uid: jobs that were bound to an arithmetic, and those whose gang had several.
  std::set<std::string> arithmetic_seen_, mixed_seen_;
  std::map<std::string, int64_t> range_from_;     // by uid: the first attempt that is in its range
  std::map<std::string, int64_t> resized_;        // by uid: the newest attempt that was resized
  std::map<RankId, absl::Duration> starts_seen_;  // STARTING attempts: when a leader first saw them
};

}  // namespace trainyard
