#include "tests/simulation/yard.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

// Within so many rounds of half a second each everything that can end must have ended.
constexpr int kMostRounds = 40000;
constexpr int kRoundsBetweenLooks = 8;

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

void SimWatcher::BreakOff() {
  watch = nullptr;
  server = nullptr;
  finished = true;
  owes_sent = false;
}

absl::Duration Yard::AnyOffset() {
  const int most = static_cast<int>(absl::ToInt64Milliseconds(SimClock::kMostOffset));
  return absl::Milliseconds(Draw(2 * most + 1) - most);
}

SimClock Yard::NewClock() {
  const int drift = Draw(2 * SimClock::kMostDrift + 1) - SimClock::kMostDrift;
  const absl::Duration offset = AnyOffset();
  return SimClock(truth_.time, drift, offset, absl::Seconds(Draw(1000000)));
}

Yard::Yard(uint64_t seed)
    : random_(seed),
      faults_{.random = random_},
      store_clock_(NewClock()),
      stores_(store_clock_),
      users_(stores_, faults_, *this, [] {}),
      machines_{NewClock(), NewClock()} {
  truth_.breach = [this](const std::string& what) { Breach(what); };
  storage_.is_lost = [this](const RankId& id) {
    const absl::StatusOr<RankRecord> rank =
        stores_.fleet().FindRank(id.job_uid, id.attempt, id.rank);
    return rank.ok() && rank->outcome == RankOutcome::kLost;
  };
  faults_.fail = Draw(3) * Draw(15);
  faults_.again = Draw(10);
  faults_.interleave = Draw(3) * 20;
  for (int i = 0; i < 2; ++i) {
    StartServer(i, Chance(20) ? SimVersion::kBefore : SimVersion::kToday);
  }
  DrawArithmetic();
  const int nodes = 1 + Draw(4);
  for (int n = 0; n < nodes; ++n) {
    std::vector<v1::Slot> slots(1 + Draw(4));
    const bool mixed = Chance(30);
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].set_index(static_cast<int>(i));
      slots[i].set_device(mixed && i % 2 == 1 ? v1::Resources::CUDA : v1::Resources::CPU);
      slots[i].set_memory_bytes(100 + 100 * Draw(3));
    }
    agents_.push_back(std::make_unique<SimAgent>(
        absl::StrCat("n", n), n, std::move(slots),
        Chance(30) ? SimVersion::kBefore : SimVersion::kToday, NewClock(), storage_));
  }
}

// Which nodes compute alike: in half of the yards all, else in up to three ways, of which one is
// not told. Caches differ, and do not count.
void Yard::DrawArithmetic() {
  const bool alike = Chance(50);
  for (int n = 0; n < 10; ++n) {
    const int kind = alike ? 0 : Draw(3);
    if (kind == 2) continue;
    storage_.arithmetic[absl::StrCat("n", n)] = {{"caches", absl::StrCat(Draw(2), " KiB")},
                                                 {"loops", kind == 0 ? "avx2" : "avx512"}};
  }
}

Yard::~Yard() {
  faults_.off = true;
  stores_.SetAway(false);
  for (auto& agent : agents_) agent->Disconnect();
  for (auto& job : jobs_) {
    if (job->watcher.watch != nullptr) job->watcher.watch->Cancel();
  }
  for (auto& server : servers_) {
    while (server->pool().RunOne()) {
    }
  }
}

void Yard::StartServer(int which, SimVersion version) {
  servers_[which] = std::make_unique<SimServer>(stores_, faults_, truth_, machines_[which],
                                                absl::StrCat("r", which, "/", processes_++),
                                                version, [this, which] { Meanwhile(which); });
}

std::string Yard::Run(int events) {
  for (now_event_ = 0; now_event_ < events && breach_.empty(); ++now_event_) {
    OneEvent();
    CheckAlways();
  }
  if (breach_.empty()) Heal();
  return breach_.empty() ? "" : absl::StrCat("event ", now_event_, ": ", breach_);
}

std::map<std::string, int64_t> Yard::Tally() const {
  std::map<std::string, int64_t> tally = faults_seen_;
  tally["jobs"] = submitted_;
  tally["succeeded jobs"] = succeeded_;
  tally["lost jobs that went on where they were"] = rejoins_;
  tally["interleaved transactions"] = interleaved_;
  tally["jobs bound to what they began with"] = static_cast<int64_t>(arithmetic_seen_.size());
  tally["gangs that compute in two ways"] = static_cast<int64_t>(mixed_seen_.size());
  tally["lost nodes"] = truth_.losses;
  tally["ranks that left the state of a broken gang"] = storage_.left_alone;
  for (const auto& agent : agents_) tally["refused agents"] += agent->refusals();
  return tally;
}

void Yard::Pump(int tasks) {
  SimServer& first = AnyServer();
  for (int i = 0; i < tasks; ++i) {
    if (first.pool().RunOne()) continue;
    SimServer& other = *servers_[&first == servers_[0].get() ? 1 : 0];
    if (!other.pool().RunOne()) return;
  }
}

void Yard::Advance(absl::Duration d) {
  truth_.time.now += d;
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
  if (Chance(5)) turns_ = Draw(2);  // many in a row: rare looks would never see a lease end
  TurnOf(*servers_[turns_]);
}

void Yard::TurnOf(SimServer& server) {
  if (server.turning) return;  // its loop is one thread
  const std::shared_ptr<const SchedulerSnapshot> before = Records();
  const int64_t interleaved = interleaved_;
  server.turning = true;
  const absl::StatusOr<absl::Duration> wait = server.loop().Turn();
  server.turning = false;
  if (before == nullptr || !wait.ok() || !server.loop().leader()) return;
  if (*wait == absl::ZeroDuration()) return;
  const std::shared_ptr<const SchedulerSnapshot> after = Records();
  if (after == nullptr) return;
  CheckLosses(server, after->nodes);
  CheckStarts(server, *after);
  const bool alone = interleaved == interleaved_;
  // What else it decided in such a turn follows neither from `before` nor from `after`.
  if (CheckCordons(*before, *after, server.judged(), alone)) return;
  // A leader that decided on records which moved on meanwhile makes up for it in the next turn.
  if (alone) CheckTurn(*before, *after, server.judged());
}

// No more faults and no more users: whatever can end must end.
void Yard::Heal() {
  settling_ = true;  // from here on watchers do not break off: hints alone must wake them
  faults_.off = true;
  SetAway(false);
  for (auto& agent : agents_) {
    agent->SetDiskFull(false);
    agent->SetStuck(false);
    agent->SetSick(false);
    (void)stores_.fleet().SetDraining(agent->name(), false);
  }
  (void)stores_.projects().SetProject({.name = "limited", .max_slots = kNoLimit});
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
    rejoins_ += RejoinsOf(*job);
  }
}

void Yard::GetOn(SimAgent& agent) {
  if (!agent.connected()) {
    SimServer& server = AnyServer();
    agent.Connect(server.fleet(), server.version());
  }
  agent.Act();
  agent.SendHeartbeat();
  for (int i = 0; i < 3; ++i) {
    std::vector<RankId> ranks;
    for (const auto& [rank, process] : agent.processes()) ranks.push_back(rank);
    for (const RankId& rank : ranks) agent.Step(rank);
  }
  agent.SendEvents(16);
  for (int i = 0; i < 20; ++i) {
    agent.Deliver();
    Pump(10);
  }
  agent.Act();
}

void Yard::HealedRound() {
  Advance(absl::Milliseconds(500));
  for (auto& agent : agents_) GetOn(*agent);
  for (size_t i = 0; i < jobs_.size() * 2; ++i) WatchEvent();
  LookAtMachines();
  Turn();
  Pump(100);
}

}  // namespace trainyard
