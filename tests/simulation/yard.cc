#include "tests/simulation/yard.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {
namespace {

constexpr absl::Duration kSelfFence = absl::Seconds(8);
constexpr size_t kMostJobs = 12;  // at a time
// Of half a second each, until everything that can end must have ended.
constexpr int kMostRounds = 300;
constexpr int kRoundsBetweenLooks = 8;

FleetOptions Options() {
  FleetOptions options;
  options.checkpoint_root = "file:///sim";
  options.self_fence = kSelfFence;
  return options;
}

}  // namespace

bool SimWatcher::Send(WatchBatch batch) {
  for (const FeedRecord& item : batch.items) {
    if (item.sequence != cursor + 1) {
      wrong = absl::StrCat("a watcher got item ", item.sequence, " after ", cursor);
    }
    cursor = item.sequence;
  }
  ended = ended || batch.ended != nullptr;
  owes_sent = true;
  return true;
}

void SimWatcher::Finish(const absl::Status& status) {
  finished = true;
  if (!status.ok() && !absl::IsCancelled(status) && !absl::IsUnavailable(status) &&
      !absl::IsNotFound(status)) {
    wrong = absl::StrCat("a watch ended with ", status.ToString());
  }
}

Yard::Yard(uint64_t seed)
    : random_(seed),
      clock_(absl::FromUnixSeconds(1700000000)),
      stores_(clock_),
      pool_(0, clock_),
      fleet_(stores_.fleet(), stores_.wakeups(), pool_, clock_, Options()),
      hub_(stores_.jobs(), stores_.wakeups(), pool_, WatchOptions{.batch = 3}) {
  for (const char* holder : {"a", "b"}) {
    // Leases are read with every pass: the invariants judge them as the leader does.
    const LoopOptions options{.holder = holder, .leases_every = absl::ZeroDuration()};
    loops_.push_back(
        std::make_unique<SchedulerLoop>(stores_.scheduler(), stores_.wakeups(), clock_, options));
  }
  const int nodes = 1 + Draw(4);
  for (int n = 0; n < nodes; ++n) {
    std::vector<v1::Slot> slots(1 + Draw(4));
    const bool mixed = Chance(30);
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].set_index(static_cast<int>(i));
      slots[i].set_device(mixed && i % 2 == 1 ? v1::Resources::CUDA : v1::Resources::CPU);
      slots[i].set_memory_bytes(100 + 100 * Draw(3));
    }
    agents_.push_back(std::make_unique<SimAgent>(absl::StrCat("n", n), std::move(slots), clock_,
                                                 fleet_, disk_, kSelfFence));
  }
}

Yard::~Yard() {
  stores_.SetAway(false);
  for (auto& agent : agents_) agent->Disconnect();
  for (auto& job : jobs_) {
    if (job->watcher.watch != nullptr) job->watcher.watch->Cancel();
  }
  while (pool_.RunOne()) {
  }
}

std::string Yard::Run(int events) {
  for (now_event_ = 0; now_event_ < events && breach_.empty(); ++now_event_) {
    OneEvent();
    CheckAlways();
  }
  if (breach_.empty()) Heal();
  return breach_.empty() ? "" : absl::StrCat("event ", now_event_, ": ", breach_);
}

void Yard::OneEvent() {
  const int kind = Draw(100);
  if (kind < 12) return UserEvent();
  if (kind < 62) return AgentEvent();
  if (kind < 66) return FaultEvent();
  if (kind < 72) return WatchEvent();
  if (kind < 84) return Turn();
  if (kind < 94) return Pump(1 + Draw(6));
  Advance(absl::Milliseconds(1 + Draw(2500)));
}

void Yard::UserEvent() {
  const int kind = Draw(10);
  if (jobs_.empty() || (kind < 4 && jobs_.size() < kMostJobs)) return SubmitSome();
  const size_t which = Draw(static_cast<int>(jobs_.size()));
  const JobName& name = jobs_[which]->name;
  if (kind < 4) return DeleteEnded(which);
  if (kind < 6) {
    (void)stores_.jobs().Pause(name, 0, {"PAUSED_BY_USER", "sim"}, absl::Seconds(1 + Draw(20)));
  } else if (kind < 9) {
    (void)stores_.jobs().Resume(name, 0, {"RESUMED_BY_USER", "sim"});
  } else if (Chance(40)) {
    (void)stores_.jobs().Cancel(name, 0, {"CANCELLED_BY_USER", "sim"});
  }
  for (const char* topic : {"queue", "fleet"}) stores_.wakeups().Wake(topic);
  stores_.wakeups().Wake("job:" + jobs_[which]->uid);
}

// A job that ended makes room for another one, once its watcher knows.
void Yard::DeleteEnded(size_t which) {
  SimJob& job = *jobs_[which];
  const absl::StatusOr<JobRecord> record = stores_.jobs().Get(job.name);
  if (!record.ok() || !IsTerminal(record->state) || !job.watcher.ended || !job.watcher.finished) {
    return;
  }
  if (const std::string wrong = WrongAtTheEndOf(job, *record); !wrong.empty()) Breach(wrong);
  const absl::Status deleted = stores_.jobs().Delete(job.name, 0);
  if (!deleted.ok()) return Breach(deleted.ToString());
  succeeded_ += record->state == JobState::kSucceeded ? 1 : 0;
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(which));
}

void Yard::SubmitSome() {
  JobRecord job;
  job.uid = absl::StrCat("uid", submitted_);
  job.project = "default";
  job.job_id = absl::StrCat("job-", submitted_);
  job.priority = Draw(3);
  job.min_slots = job.max_slots = Chance(60) ? 1 : 1 + Draw(4);
  if (Chance(30)) job.device = Chance(70) ? "CPU" : "CUDA";
  job.bytes_per_slot = 50 + (Chance(40) ? 100 * Draw(4) : 0);
  job.total_steps = 1 + Draw(6);
  job.max_restarts = 1000;  // every fault is retried: whatever can run must end well
  job.backoff = absl::Milliseconds(Draw(3) * 100);
  job.reason = {"SUBMITTED", "sim"};
  disk_.total_steps[job.uid] = job.total_steps;
  if (!stores_.jobs().Submit(job).ok()) return;
  ++submitted_;
  auto made = std::make_unique<SimJob>();
  made->name = {job.project, job.job_id};
  made->uid = job.uid;
  jobs_.push_back(std::move(made));
  stores_.wakeups().Wake("queue");
}

void Yard::AgentEvent() {
  SimAgent& agent = AnyAgent();
  switch (Draw(8)) {
    case 0:
      if (!agent.connected()) agent.Connect();
      break;
    case 1:
      agent.Act(1 + Draw(3));
      break;
    case 2:
      agent.SendHeartbeat();
      break;
    case 3:
      agent.SendEvents(1 + Draw(4));
      break;
    case 4:
    case 5:
      StepSome(agent);
      break;
    default:
      agent.Deliver();
      break;
  }
}

void Yard::StepSome(SimAgent& agent) {
  std::vector<RankId> alive;
  for (const auto& [rank, process] : agent.processes()) {
    if (process.alive) alive.push_back(rank);
  }
  if (!alive.empty()) agent.Step(alive[Draw(static_cast<int>(alive.size()))]);
}

void Yard::FaultEvent() {
  SimAgent& agent = AnyAgent();
  switch (Draw(10)) {
    case 0:
      agent.Disconnect();
      break;
    case 1:
      agent.RestartAgent();
      break;
    case 2:
      agent.LosePower();
      break;
    case 3:
      if (!agent.processes().empty()) {
        agent.Crash(agent.processes().begin()->first, Chance(50), true);
      }
      break;
    case 4:
      (void)stores_.fleet().SetDraining(agent.name(), true);
      break;
    case 5:
    case 6:
      (void)stores_.fleet().SetDraining(agent.name(), false);
      break;
    case 9:
      agent.SetDiskFull(true);
      break;
    case 7:
      away_ = !away_;
      stores_.SetAway(away_);
      break;
    case 8:
      // At once, so that nobody can judge, or with the leader looking on.
      if (const int seconds = 5 + Draw(15); Chance(30)) {
        Advance(absl::Seconds(seconds));
      } else {
        for (int i = 0; i < seconds; ++i) {
          Advance(absl::Seconds(1));
          Turn();
        }
      }
      break;
  }
  if (Chance(20)) agent.SetDiskFull(false);
  if (away_ && Chance(70)) {
    away_ = false;
    stores_.SetAway(false);
  }
}

void Yard::WatchEvent() {
  if (jobs_.empty()) return;
  SimJob& job = *jobs_[Draw(static_cast<int>(jobs_.size()))];
  SimWatcher& watcher = job.watcher;
  if (watcher.finished) {
    if (watcher.ended) return;
    watcher.finished = false;
    watcher.owes_sent = false;
    watcher.watch = hub_.Make([this, name = job.name] { return stores_.jobs().Get(name); },
                              watcher.cursor, watcher);
    hub_.Begin(watcher.watch);
  } else if (watcher.owes_sent) {
    watcher.owes_sent = false;
    watcher.watch->Sent();
  } else if (!settling_ && Chance(20)) {
    watcher.watch->Cancel();
  }
}

void Yard::Pump(int tasks) {
  for (int i = 0; i < tasks && pool_.RunOne(); ++i) {
  }
}

void Yard::Advance(absl::Duration d) {
  clock_.Advance(d);
  for (auto& agent : agents_) agent->FenceIfDue();
}

// What the stores hold, read anew once somebody wrote; null while they are away.
std::shared_ptr<const SchedulerSnapshot> Yard::Records() {
  if (away_) return nullptr;
  const std::pair<int64_t, int64_t> at{stores_.writes(), stores_.renewals()};
  if (records_ != nullptr && at == records_at_) return records_;
  absl::StatusOr<SchedulerSnapshot> read = stores_.scheduler().ReadSnapshot();
  if (!read.ok()) {
    Breach(read.status().ToString());
    return nullptr;
  }
  records_at_ = at;
  records_ = std::make_shared<const SchedulerSnapshot>(*std::move(read));
  return records_;
}

void Yard::Turn() {
  const std::shared_ptr<const SchedulerSnapshot> before = Records();
  if (Chance(5)) turns_ = Draw(2);  // in runs: who looks now and then only never sees a lease end
  SchedulerLoop& loop = *loops_[turns_];
  const absl::StatusOr<absl::Duration> wait = loop.Turn();
  if (before == nullptr || !wait.ok() || !loop.leader()) return;
  if (&loop != leader_) leases_.emplace(absl::Seconds(10));
  if (&loop != leader_ || clock_.Now() - judged_ > LeaseJudge::kMostGap) {
    judged_since_ = clock_.Now();
  }
  leader_ = &loop;
  judged_ = clock_.Now();
  const std::shared_ptr<const SchedulerSnapshot> read = Records();
  SchedulerSnapshot judged{.now = ToMicroseconds(clock_.Now()), .nodes = read->nodes};
  std::vector<NodeRecord*> nodes;
  for (NodeRecord& node : judged.nodes) nodes.push_back(&node);
  leases_->Judge(clock_.SinceBoot(), judged.now, nodes);
  if (*wait == absl::ZeroDuration()) return;
  CheckLosses(read->nodes);
  CheckTurn(*before, *read, judged.nodes);
}

// No more faults and no more users: whatever can end must end.
void Yard::Heal() {
  settling_ = true;  // watchers stay from here on: hints alone must do
  away_ = false;
  stores_.SetAway(false);
  for (auto& agent : agents_) {
    agent->SetDiskFull(false);
    (void)stores_.fleet().SetDraining(agent->name(), false);
  }
  for (const auto& job : jobs_)
    (void)stores_.jobs().Resume(job->name, 0, {"RESUMED_BY_USER", "sim"});
  std::string left;
  for (int round = 0; round < kMostRounds && breach_.empty(); ++round) {
    HealedRound();
    CheckAlways();
    if (round % kRoundsBetweenLooks == kRoundsBetweenLooks - 1) left = LeftToDo();
    if (round >= kRoundsBetweenLooks && left.empty()) break;
  }
  if (!left.empty()) return Breach(left);
  for (const auto& job : jobs_) {
    const absl::StatusOr<JobRecord> record = stores_.jobs().Get(job->name);
    succeeded_ += record.ok() && record->state == JobState::kSucceeded ? 1 : 0;
  }
}

void Yard::HealedRound() {
  Advance(absl::Milliseconds(500));
  for (auto& agent : agents_) {
    if (!agent->connected()) agent->Connect();
    agent->Act();
    agent->SendHeartbeat();
    for (int i = 0; i < 3; ++i) {
      std::vector<RankId> ranks;
      for (const auto& [rank, process] : agent->processes()) ranks.push_back(rank);
      for (const RankId& rank : ranks) agent->Step(rank);
    }
    agent->SendEvents(16);
    for (int i = 0; i < 20; ++i) {
      agent->Deliver();
      Pump(10);
    }
    agent->Act();
  }
  for (size_t i = 0; i < jobs_.size() * 2; ++i) WatchEvent();
  Turn();
  Pump(100);
}

}  // namespace trainyard
