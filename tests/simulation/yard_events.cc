// What happens in a yard, drawn one after the other.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/yard.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {
namespace {

constexpr size_t kMostJobs = 12;  // at a time
constexpr size_t kMostAgents = 6;
// Now and then so little goes wrong for so many events at most that gangs start, train, are resized
// and go on from what others left; among all that goes wrong else hardly any comes so far.
constexpr int kEventsBetweenCalms = 200;
constexpr int kLongestCalm = 300;

}  // namespace

void Yard::OneEvent() {
  if (calm_events_ > 0) {
    --calm_events_;
    return CalmEvent();
  }
  if (Draw(kEventsBetweenCalms) == 0) {
    SetAway(false);
    calm_events_ = Draw(kLongestCalm);
  }
  const int kind = Draw(100);
  if (kind < 12) return UserEvent();
  if (kind < 62) return AgentEvent();
  if (kind < 66) return FaultEvent();
  if (kind < 72) return WatchEvent();
  if (kind < 84) return Turn();
  if (kind < 94) return Pump(1 + Draw(6));
  Advance(absl::Milliseconds(1 + Draw(2500)));
}

void Yard::CalmEvent() {
  const int kind = Draw(40);
  if (kind < 28) return GetOn(*agents_[gets_on_++ % agents_.size()]);
  if (kind < 32) return Turn();
  if (kind < 36) return Advance(absl::Milliseconds(1 + Draw(1500)));
  if (kind < 38) return WatchEvent();
  if (kind == 38 && Chance(50)) return UserEvent();
  if (kind == 38) return jobs_.empty() ? SubmitSome() : SetRange(AnyJob());
  SimAgent& agent = AnyAgent();
  if (Chance(50) || agent.processes().empty()) return;
  agent.Crash(agent.processes().begin()->first, true, true);
}

void Yard::UserEvent() {
  const int kind = Draw(10);
  if (jobs_.empty() || (kind < 4 && jobs_.size() < kMostJobs)) return SubmitSome();
  const size_t which = Draw(static_cast<int>(jobs_.size()));
  const JobName& name = jobs_[which]->name;
  if (kind < 4) return DeleteEnded(which);
  if (Chance(5)) return SetLimit();
  if (Chance(20)) {
    SetRange(*jobs_[which]);
  } else if (kind < 6) {
    (void)users_.Pause(name, 0, {"PAUSED_BY_USER", "sim"}, absl::Seconds(1 + Draw(20)));
  } else if (kind < 9) {
    (void)users_.Resume(name, 0, {"RESUMED_BY_USER", "sim"});
  } else if (Chance(40)) {
    (void)users_.Cancel(name, 0, {"CANCELLED_BY_USER", "sim"});
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
  const bool succeeded = record->state == JobState::kSucceeded;
  const int64_t rejoined = RejoinsOf(job);
  const absl::Status deleted = users_.Delete(job.name, 0);
  if (stores_.jobs().Get(job.name).ok()) {
    if (!absl::IsUnavailable(deleted)) Breach(deleted.ToString());
    return;
  }
  succeeded_ += succeeded ? 1 : 0;
  rejoins_ += rejoined;
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(which));
}

void Yard::SubmitSome() {
  if (away_) return;
  JobRecord job;
  job.uid = absl::StrCat("uid", submitted_);
  job.project = Chance(30) ? "limited" : "default";
  job.job_id = absl::StrCat("job-", submitted_);
  job.request_id = job.uid;
  job.priority = Draw(3);
  job.min_slots = job.max_slots = Chance(60) ? 1 : 1 + Draw(4);
  const bool elastic = Chance(40);
  if (elastic) job.max_slots += 1 + Draw(4);
  job.logical_ranks = job.max_slots + Draw(3);
  // Ranks that share shards: they decide where a gang goes, and that it has an even number.
  if (job.min_slots % 2 == 0 && job.max_slots % 2 == 0) job.group_ranks = job.slot_step = 2;
  constexpr ArithmeticRule kRules[] = {ArithmeticRule::kUnknown, ArithmeticRule::kAny,
                                       ArithmeticRule::kSameInAttempt, ArithmeticRule::kSame};
  job.arithmetic_rule = kRules[Draw(4)];
  if (Chance(30)) job.device = Chance(70) ? "CPU" : "CUDA";
  job.bytes_per_slot = 50 + (Chance(40) ? 100 * Draw(4) : 0);
  job.second_owner = job.max_slots > 1 && Chance(60);
  job.total_steps = 1 + Draw(!elastic && !job.second_owner ? 6 : Chance(20) ? 200 : 40);
  job.max_restarts = 1000;  // every fault is retried: whatever can run must end well
  job.backoff = absl::Milliseconds(Draw(3) * 100);
  if (Chance(4)) {  // never makes a step: it must end, by its budget
    ++faults_seen_["jobs that take their node down"];
    job.max_restarts = Draw(3);
    storage_.poisoned.insert(job.uid);
  }
  job.reason = {"SUBMITTED", "sim"};
  storage_.total_steps[job.uid] = job.total_steps;
  absl::Status submitted = absl::UnavailableError("");
  while (absl::IsUnavailable(submitted)) submitted = users_.Submit(job).status();
  if (!submitted.ok()) return Breach(submitted.ToString());
  ++submitted_;
  auto made = std::make_unique<SimJob>();
  made->name = {job.project, job.job_id};
  made->uid = job.uid;
  jobs_.push_back(std::move(made));
  stores_.wakeups().Wake("queue");
}

// What the job has now it keeps until it is resized, but every attempt from then on is in the
// range, and in the layout.
void Yard::SetRange(const SimJob& job) {
  const absl::StatusOr<JobRecord> before = stores_.jobs().Get(job.name);
  if (!before.ok()) return;
  SlotRange range{.bytes_per_slot = before->bytes_per_slot,
                  .slot_step = before->slot_step,
                  .group_ranks = before->group_ranks,
                  .layout = before->layout};
  if (Chance(50)) {
    range.slot_step = range.group_ranks = 1 + Draw(2);
    range.bytes_per_slot = 50 + (Chance(40) ? 100 * Draw(3) : 0);
    range.layout = absl::StrCat(R"({"shard":"NONE","layout":{"tensor":)", range.group_ranks,
                                R"(,"chunks":)", range.bytes_per_slot, "}}");
    range.layout_in_words = "another one";
  }
  const int least = 1 + Draw(3);
  range.min_slots = least * range.slot_step;
  range.max_slots = (least + Draw(4)) * range.slot_step;
  (void)users_.SetSlotRange(job.name, 0, range, "sim");
  const absl::StatusOr<JobRecord> now = stores_.jobs().Get(job.name);
  if (!now.ok() || now->version == before->version) return;
  ++faults_seen_["jobs of another range of slots"];
  if (now->layout != before->layout) ++faults_seen_["jobs of another layout"];
  range_from_[job.uid] = now->attempt + 1;
}

void Yard::AgentEvent() {
  SimAgent& agent = AnyAgent();
  SimServer& server = AnyServer();
  switch (Draw(8)) {
    case 0:
      if (!agent.connected()) agent.Connect(server.fleet(), server.version());
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
  if (alive.empty()) return;
  const RankId rank = alive[Draw(static_cast<int>(alive.size()))];
  if (agent.sick() && Chance(10)) return agent.Crash(rank, true, true);
  agent.Step(rank);
}

void Yard::FaultEvent() {
  switch (Draw(12)) {
    case 0:
      SetAway(!away_);
      break;
    case 1:
      if (Chance(30)) StoreFails();
      break;
    case 2:
      if (Chance(20)) KillServer(Draw(2));
      break;
    case 3:
      // All at once, so that no leader can judge leases meanwhile, or while the leader looks on.
      if (const int seconds = 5 + Draw(15); Chance(30)) {
        Advance(absl::Seconds(seconds));
      } else {
        for (int i = 0; i < seconds; ++i) {
          Advance(absl::Seconds(1));
          Turn();
        }
      }
      break;
    case 4:
      CutOff();
      break;
    default:
      AgentFault();
      break;
  }
  if (Chance(20)) LookAtMachines();
  if (Chance(20)) AnyAgent().SetDiskFull(false);
  if (Chance(20)) AnyAgent().SetStuck(false);
  if (Chance(10)) AnyAgent().SetSick(false);
  if (away_ && Chance(70)) SetAway(false);
}

// Cuts off an agent whose worker steps until its node is lost, while the others are heard of. Then
// it connects again.
void Yard::CutOff() {
  const auto steps = [](const auto& ranked) {
    return ranked.second.alive && ranked.second.phase == 2 && ranked.second.step > 0;
  };
  const auto found = std::find_if(agents_.begin(), agents_.end(), [&steps](const auto& agent) {
    return agent->connected() &&
           std::any_of(agent->processes().begin(), agent->processes().end(), steps);
  });
  if (found == agents_.end()) return;
  SimAgent& cut = **found;
  const auto exchange = [this, &cut] {
    cut.Act();
    cut.SendEvents(16);
    for (int i = 0; i < 4; ++i) {
      cut.Deliver();
      Pump(4);
    }
  };
  exchange();
  cut.Disconnect();
  for (int seconds = 13 + Draw(6); seconds > 0; --seconds) {
    Advance(absl::Seconds(1));
    for (auto& agent : agents_) {
      agent->Act();
      agent->SendHeartbeat();
      agent->Deliver();
      Pump(4);
    }
    if (Chance(50)) StepSome(cut);
    Turn();
  }
  SimServer& server = AnyServer();
  cut.Connect(server.fleet(), server.version());
  exchange();
}

void Yard::AgentFault() {
  SimAgent& agent = AnyAgent();
  if (Chance(8)) {
    ++faults_seen_["nodes that leave"];
    return agent.Leave(absl::Seconds(Draw(60)));
  }
  switch (Draw(12)) {
    case 0:
    case 1:
      agent.Disconnect();
      break;
    case 2:
      agent.Stop();
      break;
    case 3:
      agent.LosePower();
      break;
    case 4:
      if (!agent.processes().empty()) {
        agent.Crash(agent.processes().begin()->first, Chance(50), true);
      }
      break;
    case 5:
      (void)users_.SetDraining(agent.name(), Chance(30));
      break;
    case 6:
      (void)users_.SetDraining(agent.name(), false);
      break;
    case 7:
      ++faults_seen_["full disks"];
      agent.SetDiskFull(true);
      break;
    case 8:
      if (agent.version() == SimVersion::kBefore) {
        ++faults_seen_["upgraded agents"];
        agent.Upgrade();
      } else if (agent.proven() && Chance(30)) {
        ++faults_seen_["wiped agents"];
        agent.Wipe(absl::Seconds(Draw(120)));
      }
      break;
    case 9:
      if (Chance(30)) AddTwin();
      break;
    case 10:
      ++faults_seen_["agents that begin nothing"];
      agent.SetStuck(true);
      break;
    case 11:
      ++faults_seen_["sick devices"];
      agent.SetSick(true);
      break;
  }
}

// An operator looks at each machine with lost ranks, and says so where none of them runs.
void Yard::LookAtMachines() {
  std::set<RankId> alive;
  for (const auto& agent : agents_) {
    for (const auto* ranks : {&agent->processes(), &agent->ghosts()}) {
      for (const auto& [rank, process] : *ranks) {
        if (process.alive) alive.insert(rank);
      }
    }
  }
  for (const NodeRecord& node : stores_.fleet().ListNodes().value_or(std::vector<NodeRecord>())) {
    const bool runs = std::any_of(node.lost_ranks.begin(), node.lost_ranks.end(),
                                  [&](const LostRank& lost) { return alive.count(lost.id) > 0; });
    if (node.lost_ranks.empty() || runs) continue;
    ++faults_seen_["nodes that an operator found empty"];
    (void)stores_.fleet().ConfirmEmpty(node.name);
  }
}

// Another agent under the name of one that proves who it is: on another machine, or a copy.
void Yard::AddTwin() {
  const SimAgent& agent = AnyAgent();
  if (agents_.size() >= kMostAgents || !agent.proven()) return;
  ++faults_seen_["agents under a name that is taken"];
  agents_.push_back(std::make_unique<SimAgent>(agent.name(), static_cast<int>(agents_.size()),
                                               agent.slots(), SimVersion::kToday, NewClock(),
                                               storage_));
}

// kill -9, or an upgrade: another process of perhaps another version takes its place.
void Yard::KillServer(int which) {
  ++faults_seen_["killed servers"];
  SimServer* const server = servers_[which].get();
  server->pool().Stop();
  for (auto& agent : agents_) agent->CutFrom(server->fleet());
  for (auto& job : jobs_) {
    if (job->watcher.server == server) job->watcher.BreakOff();
  }
  servers_[which].reset();
  StartServer(which, Chance(30) ? SimVersion::kBefore : SimVersion::kToday);
}

// The store is away for a while, and comes back on another machine with another wall clock.
void Yard::StoreFails() {
  ++faults_seen_["fail-overs of the store"];
  SetAway(true);
  for (int seconds = Draw(40); seconds > 0; --seconds) {
    Advance(absl::Seconds(1));
    Turn();
    Pump(Draw(4));
    StepSome(AnyAgent());
  }
  store_clock_.SetOffset(AnyOffset());
  SetAway(false);
}

void Yard::SetAway(bool away) {
  if (away == away_) return;
  away_ = away;
  stores_.SetAway(away);
  if (away) {
    away_since_ = truth_.time.now;
  } else if (truth_.time.now - away_since_ > LeaseJudge::kMostGap * 1.05) {
    truth_.back_at = truth_.time.now;
  }
}

void Yard::Meanwhile(int calling) {
  if (within_ || settling_) return;
  within_ = true;
  ++interleaved_;
  switch (Draw(8)) {
    case 0:
    case 1:
      UserEvent();
      break;
    case 2:
      Advance(absl::Milliseconds(1 + Draw(800)));
      break;
    case 3:
      // Once, or for so long that the other one leads when this one goes on.
      for (int seconds = Chance(30) ? Draw(12) : 0; seconds > 0; --seconds) {
        Advance(absl::Seconds(1));
        TurnOf(*servers_[1 - calling]);
        UserEvent();
        for (int i = 0; i < 8; ++i) AgentEvent();
        Pump(8);
      }
      TurnOf(*servers_[1 - calling]);
      break;
    case 4:
    case 5:
      AgentEvent();
      break;
    default:
      Pump(1 + Draw(3));
      break;
  }
  within_ = false;
}

void Yard::WatchEvent() {
  if (jobs_.empty()) return;
  SimJob& job = *jobs_[Draw(static_cast<int>(jobs_.size()))];
  SimWatcher& watcher = job.watcher;
  if (watcher.finished) {
    if (watcher.ended) return;
    SimServer& server = AnyServer();
    watcher.finished = false;
    watcher.owes_sent = false;
    watcher.server = &server;
    watcher.watch =
        server.hub().Make([&store = server.store(), name = job.name] { return store.Get(name); },
                          watcher.cursor, watcher);
    server.hub().Begin(watcher.watch);
  } else if (watcher.owes_sent) {
    watcher.owes_sent = false;
    watcher.watch->Sent();
  } else if (!settling_ && Chance(20)) {
    watcher.watch->Cancel();
  }
}

}  // namespace trainyard
