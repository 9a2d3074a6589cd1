#include "server/scheduler/loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/retry_pause.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// Passes in one turn: each applies what the last one made possible (a lost node's jobs are queued,
// then placed elsewhere). More means that something else changes all the time; the next turn goes
// on.
constexpr int kMostPasses = 4;
constexpr size_t kMostReasonsBeside = 32;  // in a pass that places jobs
// From the beginning of a turn to that of the next: many submissions or ends of ranks a second are
// read and planned together. What comes to a leader that rested is looked at at once.
constexpr absl::Duration kShortestTurn = absl::Milliseconds(10);
constexpr absl::Duration kFirstRetry = absl::Milliseconds(5);
constexpr int kLooksPerLease = 10;  // of a replica that waits: how much later it follows

bool Empty(const Decisions& decisions) {
  return decisions.placements.empty() && decisions.suspensions.empty() &&
         decisions.resizes.empty() && decisions.reasons.empty() && decisions.lost_nodes.empty() &&
         decisions.cordons.empty() && decisions.failed_starts.empty() &&
         decisions.charges.empty() && decisions.overdue_cancels.empty();
}

}  // namespace

SchedulerLoop::SchedulerLoop(SchedulerStore& store, Wakeups& wakeups, Clock& clock,
                             LoopOptions options)
    : store_(store),
      wakeups_(wakeups),
      clock_(clock),
      options_(std::move(options)),
      leader_judge_(options_.leader_lease),
      most_(options_.planner.most_placements) {}

void SchedulerLoop::Start() {
  subscription_ = wakeups_.Subscribe([this](const std::string& topic) {
    if (topic != "queue") return;
    absl::MutexLock lock(&mu_);
    if (!std::exchange(woken_, true)) changed_.Signal();
  });
  thread_ = std::thread([this] { Run(); });
}

void SchedulerLoop::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.Signal();
  }
  if (!thread_.joinable()) return;
  wakeups_.Unsubscribe(subscription_);
  thread_.join();
  if (leader_.exchange(false)) {
    const absl::Status status = store_.StandDown(options_.holder);
    if (!status.ok()) spdlog::warn("scheduler: could not stand down: {}", status.ToString());
    wakeups_.Wake("queue");  // the other replicas look at once
  }
}

void SchedulerLoop::Run() {
  std::string complaint;
  RetryPause retry(kFirstRetry, options_.longest_retry);
  while (true) {
    const absl::Duration begun = SystemClock().SinceBoot();
    absl::StatusOr<absl::Duration> wait = Turn();
    if (!wait.ok()) {
      const std::string text = wait.status().ToString();
      if (text != complaint) spdlog::warn("scheduler: {}", text);
      complaint = text;
      wait = retry.Next();
    } else {
      complaint.clear();
      retry.Reset();
    }
    absl::MutexLock lock(&mu_);
    const absl::Time deadline = absl::Now() + std::min(*wait, options_.poll);
    while (!woken_ && !stopping_) {
      if (changed_.WaitWithDeadline(&mu_, deadline)) break;
    }
    const absl::Time rested = absl::Now() + (begun + kShortestTurn - SystemClock().SinceBoot());
    while (!stopping_) {
      if (changed_.WaitWithDeadline(&mu_, rested)) break;
    }
    woken_ = false;
    if (stopping_) return;
  }
}

absl::Status SchedulerLoop::Lead(absl::Duration& wait) {
  const absl::Duration now = clock_.SinceBoot();
  if (leader_ && now < renew_at_) return absl::OkStatus();
  std::optional<int64_t> stale_beat;
  if (!leader_) {
    TY_ASSIGN_OR_RETURN(const LeaderRecord other, store_.ReadLeader());
    const absl::Duration left = leader_judge_.Left(clock_.SinceBoot(), other);
    wait = std::min({wait, left, options_.leader_lease / kLooksPerLease});
    if (left == absl::ZeroDuration()) stale_beat = other.beat;
    if (!stale_beat.has_value() && ReplicaOf(other.holder) != ReplicaOf(options_.holder)) {
      BeginAnew();
      return absl::FailedPreconditionError(absl::StrCat(other.holder, " leads"));
    }
  }
  const absl::StatusOr<LeaderLease> lease =
      store_.Lead(options_.holder, options_.leader_lease, stale_beat);
  if (!lease.ok()) {
    if (leader_.exchange(false)) spdlog::info("scheduler: no longer the leader");
    return lease.status();
  }
  if (!judge_.has_value() || epoch_ != lease->epoch) {
    judge_.emplace(options_.lease);
    starts_.emplace(options_.start_limit);
    BeginAnew();
  }
  if (!leader_.exchange(true)) spdlog::info("scheduler: leads with epoch {}", lease->epoch);
  epoch_ = lease->epoch;
  renew_at_ = now + options_.leader_lease / 3;
  return absl::OkStatus();
}

void SchedulerLoop::BeginAnew() {
  state_ = SchedulerState();
  foretold_.Set({}, state_.fold().slot_limits());
}

absl::Status SchedulerLoop::ReadChanges() {
  bool leases = clock_.SinceBoot() - leases_read_ >= options_.leases_every;
  while (true) {
    const absl::Duration begun = clock_.SinceBoot();
    const bool anew = begun - changes_read_ > SchedulerStore::kOldestPosition / 2;
    TY_ASSIGN_OR_RETURN(SnapshotChanges changes,
                        store_.ReadChanges(anew ? ChangePosition() : state_.position(), leases));
    changes_read_ = begun;
    state_.Fold(std::move(changes));
    if (leases) leases_read_ = begun;
    // With every reading: what is left of a lease is counted from the store's clock, which may
    // jump.
    state_.Judge(*judge_, clock_.SinceBoot());
    state_.Judge(*starts_, clock_.SinceBoot());
    // Leases are read again before anything is decided on one that seems to be over.
    if (leases || !state_.AnyLeaseIsOver()) return absl::OkStatus();
    leases = true;
  }
}

Pass SchedulerLoop::Plan() {
  PlannerOptions planner = options_.planner;
  planner.most_placements = std::min(planner.most_placements, most_);
  planner.most_reasons = std::min(planner.most_reasons, most_);
  Pass pass = state_.Plan(planner);
  foretold_.Set(state_.waiting(), state_.fold().slot_limits());
  // Placements go first: writing the reasons of a long queue must not slow down placing it.
  if (!pass.decisions.placements.empty() && pass.decisions.reasons.size() > kMostReasonsBeside) {
    pass.decisions.reasons.resize(kMostReasonsBeside);
    pass.next = state_.now();
  }
  return pass;
}

absl::StatusOr<absl::Duration> SchedulerLoop::Turn() {
  absl::Duration wait = options_.poll;
  for (int i = 0; i < kMostPasses; ++i) {
    const absl::Status lead = Lead(wait);  // before each pass: several may take longer than a lease
    if (absl::IsFailedPrecondition(lead)) return wait;  // another replica leads
    TY_RETURN_IF_ERROR(lead);
    TY_RETURN_IF_ERROR(ReadChanges());
    const Pass pass = Plan();
    wait = pass.next - state_.now();
    if (pass.suspension_overdue) wakeups_.Wake("fleet");
    if (Empty(pass.decisions)) {
      OfferCapacity(pass);
      break;
    }
    const absl::StatusOr<int> applied = store_.Apply(epoch_, pass.decisions);
    if (absl::IsAborted(applied.status())) {
      leader_ = false;  // a newer leader exists, or it looks so: ask again
      return options_.longest_retry;
    }
    if (!applied.ok()) {
      most_ = std::max<size_t>(1, most_ / 2);
      wakeups_.Wake("fleet");  // the commit may have gone through, only its answer was lost
      return applied.status();
    }
    judge_->Heard(clock_.SinceBoot());
    starts_->Heard(clock_.SinceBoot());
    most_ = std::min(options_.planner.most_placements, most_ * 2);
    WakeFor(pass, *applied);
    OfferCapacity(pass);
    if (*applied == 0 && pass.decisions.lost_nodes.empty()) break;
    wait = absl::ZeroDuration();
  }
  return wait;
}

void SchedulerLoop::OfferCapacity(const Pass& pass) {
  const absl::Duration now = clock_.SinceBoot();
  if (!options_.wants_capacity || now - offered_ < options_.capacity_every) return;
  if (!options_.wants_capacity()) return;
  offered_ = now;
  options_.on_capacity(CapacityOf(state_, pass, epoch_));
}

void SchedulerLoop::WakeFor(const Pass& pass, int applied) {
  const Decisions& decisions = pass.decisions;
  if (applied == 0 && decisions.lost_nodes.empty()) return;
  std::set<std::string> jobs, nodes;
  for (const Placement& placement : decisions.placements) {
    jobs.insert(placement.job_uid);
    for (const Placement::Rank& rank : placement.ranks) nodes.insert(rank.node);
  }
  std::set<std::string> suspended;  // or to be stopped
  for (const Suspension& suspension : decisions.suspensions) suspended.insert(suspension.job_uid);
  for (const Resize& resize : decisions.resizes) suspended.insert(resize.job_uid);
  for (const FailedStart& start : decisions.failed_starts) suspended.insert(start.job_uid);
  for (const LossCharge& charge : decisions.charges) jobs.insert(charge.job_uid);
  for (const OverdueCancel& overdue : decisions.overdue_cancels) jobs.insert(overdue.job_uid);
  jobs.insert(suspended.begin(), suspended.end());
  const bool any_lost = !decisions.lost_nodes.empty();
  for (const auto& [uid, holder] : state_.fold().holders()) {
    if (any_lost) jobs.insert(uid);
    if (suspended.count(uid) == 0) continue;
    for (const std::string& node : NodesOf(holder.attempt)) nodes.insert(node);
  }
  for (const std::string& node : nodes) wakeups_.Wake("node:" + node);
  if (any_lost) wakeups_.Wake("fleet");  // those who had peers there
  for (const std::string& uid : jobs) wakeups_.Wake("job:" + uid);
}

}  // namespace trainyard
