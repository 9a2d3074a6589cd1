#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/scheduler/capacity_view.h"
#include "server/scheduler/leader_judge.h"
#include "server/scheduler/lease_judge.h"
#include "server/scheduler/scheduler_state.h"
#include "server/scheduler/start_judge.h"
#include "storage/base/clock.h"
#include "storage/scheduler_store.h"
#include "storage/wakeups.h"

namespace trainyard {

struct LoopOptions {
  std::string holder;  // "REPLICA/PROCESS", or any name that nobody else has
  PlannerOptions planner;
  absl::Duration leader_lease = absl::Seconds(4);
  absl::Duration lease = absl::Seconds(10);        // of a node, as its agent was told
  absl::Duration start_limit = absl::Minutes(10);  // how long a job may be STARTING
  absl::Duration poll = absl::Seconds(1);          // when nothing wakes it
  // All leases change every few seconds, so they are not read with every pass.
  absl::Duration leases_every = absl::Milliseconds(500);
  absl::Duration longest_retry = absl::Milliseconds(200);  // while the store is away
  // Gets what a pass of the leader left waiting, on the loop's thread, where `wants_capacity` says
  // that somebody will look at it.
  std::function<bool()> wants_capacity;
  std::function<void(CapacityView)> on_capacity;
  absl::Duration capacity_every = absl::Milliseconds(200);  // at most: it costs a look at all nodes
};

// Reads what changed, asks the planner, writes its decisions: as leader only. One thread. The
// stores and the clock must outlive it.
class SchedulerLoop {
 public:
  SchedulerLoop(SchedulerStore& store, Wakeups& wakeups, Clock& clock, LoopOptions options);
  ~SchedulerLoop() { Stop(); }

  void Start();
  // Ends the pass that runs, and gives leadership up so that another replica need not wait.
  // Idempotent.
  void Stop();

  bool leader() const { return leader_; }

  // Why a job that is about to be submitted will wait, if others of its class do; thread-safe.
  // Absent: they do not, or another replica leads and knows.
  std::optional<Reason> Foretell(const JobRecord& job) const {
    return leader_ ? foretold_.Find(job) : std::nullopt;
  }

  // One turn on the caller's thread (instead of Start): leads, plans until nothing changes, and
  // returns when to look again, on the store's clock relative to its now. For the loop and for
  // simulations.
  absl::StatusOr<absl::Duration> Turn();

 private:
  void Run();
  // Renews the lease of a leader in time, or takes it over where it stood still.
  // kFailedPrecondition: another replica leads; `wait` says when to look again.
  absl::Status Lead(absl::Duration& wait);
  void BeginAnew();
  absl::Status ReadChanges();
  Pass Plan();
  void WakeFor(const Pass& pass, int applied);
  void OfferCapacity(const Pass& pass);

  SchedulerStore& store_;
  Wakeups& wakeups_;
  Clock& clock_;
  const LoopOptions options_;

  // Used by the loop's thread alone.
  int64_t epoch_ = 0;
  LeaderJudge leader_judge_;          // while another leads
  std::optional<LeaseJudge> judge_;   // of this epoch: a new leader begins anew
  std::optional<StartJudge> starts_;  // likewise
  SchedulerState state_;              // likewise
  absl::Duration changes_read_ = -absl::InfiniteDuration();  // on Clock::SinceBoot
  absl::Duration leases_read_ = -absl::InfiniteDuration();   // likewise
  size_t most_;  // decisions of a kind in one pass: halved when they were too many to apply in time
  absl::Duration offered_ = -absl::InfiniteDuration();  // likewise
  absl::Duration renew_at_ = absl::ZeroDuration();      // on Clock::SinceBoot

  std::atomic<bool> leader_{false};
  ForetoldReasons foretold_;
  absl::Mutex mu_;
  absl::CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int64_t subscription_ = 0;
  std::thread thread_;
};

}  // namespace trainyard
