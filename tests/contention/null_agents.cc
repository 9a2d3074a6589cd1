#include "tests/contention/null_agents.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"

namespace trainyard::testing {
namespace {

constexpr absl::Duration kLookAnyway = absl::Milliseconds(100);
constexpr absl::string_view kPrefix = "node-";

}  // namespace

NullAgents::NullAgents(Stores& stores, const Options& options)
    : stores_(stores), fleet_(stores.fleet()), options_(options), parts_(options.threads) {
  for (int n = 0; n < options.nodes; ++n) parts_[n % options.threads].nodes.insert(n);
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i].random.seed(options.seed * 1000 + i);
}

std::string NullAgents::NameOf(int node) const { return absl::StrFormat("node-%03d", node); }

AgentIdentity NullAgents::AgentOf(int node) const {
  return {NameOf(node), absl::StrCat("agent ", node), absl::StrCat("boot ", node, ":0:0:")};
}

NodeRecord NullAgents::Describe(int node) {
  NodeRecord record;
  const AgentIdentity agent = AgentOf(node);
  record.name = agent.node;
  record.uid = agent.uid;
  record.instance = agent.instance;
  record.incarnation = absl::StrCat(node, "/", session_++);
  record.address = "127.0.0.1";
  for (int i = 0; i < options_.slots; ++i) {
    record.slots.push_back({.index = i,
                            .device = node % 2 == 0 ? "CUDA" : "CPU",
                            .memory_bytes = int64_t{8} << 30,
                            .cpu_threads = 1});
  }
  absl::MutexLock lock(&mu_);
  incarnations_[node] = record.incarnation;
  return record;
}

absl::Status NullAgents::Register() {
  for (int n = 0; n < options_.nodes; ++n) {
    TY_RETURN_IF_ERROR(fleet_.RegisterNode(Describe(n), options_.lease).status());
  }
  stores_.wakeups().Wake("queue");
  return absl::OkStatus();
}

void NullAgents::Start() {
  subscription_ = stores_.wakeups().Subscribe([this](const std::string& topic) {
    absl::string_view name = topic;
    int node = 0;
    absl::MutexLock lock(&mu_);
    if (absl::ConsumePrefix(&name, "node:") && absl::ConsumePrefix(&name, kPrefix) &&
        absl::SimpleAtoi(name, &node)) {
      woken_.insert(node);
    } else if (topic == "fleet") {
      for (int n = 0; n < options_.nodes; ++n) woken_.insert(n);
    }
  });
  running_ = true;
  renewer_ = std::thread([this] { Renew(); });
  for (Part& part : parts_) part.thread = std::thread([this, &part] { Work(part); });
}

void NullAgents::StopRunning() {
  running_ = false;
  for (Part& part : parts_) {
    if (part.thread.joinable()) part.thread.join();
  }
}

void NullAgents::Stop() {
  StopRunning();
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (renewer_.joinable()) renewer_.join();
  if (subscription_ != 0) stores_.wakeups().Unsubscribe(std::exchange(subscription_, 0));
}

void NullAgents::Silence(int count) { silent_ = count; }

absl::Status NullAgents::Return() {
  const int silent = silent_;
  for (int n = 0; n < silent; ++n) {
    TY_RETURN_IF_ERROR(fleet_.RegisterNode(Describe(n), options_.lease).status());
  }
  silent_ = 0;
  stores_.wakeups().Wake("queue");
  return absl::OkStatus();
}

std::string NullAgents::complaint() const {
  absl::MutexLock lock(&mu_);
  return complaint_;
}

void NullAgents::Complain(const std::string& what) {
  absl::MutexLock lock(&mu_);
  if (complaint_.empty()) complaint_ = what;
}

// All leases in one statement, again and again, as a replica's renewer does.
void NullAgents::Renew() {
  while (true) {
    std::vector<LeaseRenewal> renewals;
    {
      absl::MutexLock lock(&mu_);
      for (int n = silent_; n < options_.nodes; ++n) {
        renewals.push_back({NameOf(n), incarnations_[n], options_.lease, {}});
      }
    }
    for (const absl::Status& answer : fleet_.RenewLeases(renewals)) {
      ++renewals_;
      if (absl::IsUnavailable(answer)) ++put_off_;
      if (absl::IsAborted(answer)) ++refused_;
    }
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), options_.heartbeat)) return;
  }
}

std::set<int> NullAgents::TakeWoken(const Part& part) {
  const auto any = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::any_of(woken_.begin(), woken_.end(),
                       [&](int node) { return part.nodes.count(node) > 0; });
  };
  absl::MutexLock lock(&mu_);
  if (!mu_.AwaitWithTimeout(absl::Condition(&any), kLookAnyway)) return {};
  std::set<int> mine;
  for (const int node : part.nodes) {
    if (woken_.erase(node) > 0) mine.insert(node);
  }
  return mine;
}

void NullAgents::Work(Part& part) {
  while (running_) {
    std::set<int> nodes = TakeWoken(part);
    for (const auto& [key, rank] : part.ranks) nodes.insert(key.first);
    std::vector<RankEvents> group;
    for (const int node : nodes) {
      if (node >= silent_) LookAt(part, node, group);
    }
    for (size_t from = 0; from < group.size(); from += 64) {
      const size_t to = std::min(group.size(), from + 64);
      Report(part, {group.begin() + static_cast<std::ptrdiff_t>(from),
                    group.begin() + static_cast<std::ptrdiff_t>(to)});
    }
  }
}

void NullAgents::Add(Rank& rank, decltype(RankEventRecord::what) what) {
  rank.over = std::holds_alternative<RankExited>(what);
  rank.pending.push_back(
      {.sequence = ++rank.sequence, .time = absl::Now(), .what = std::move(what)});
}

// What a worker does between two looks.
void NullAgents::Advance(Part& part, const DesiredRank& wanted, Rank& rank) {
  const int64_t step = wanted.job.total_steps;
  if (rank.sequence == 0) return Add(rank, RankRestored{wanted.attempt.restore_step});
  const auto chance = part.random() % 100;
  if (wanted.suspend) {
    Add(rank, RankFinished{true, wanted.attempt.restore_step});
  } else if (chance < 70) {
    Add(rank, RankFinished{false, step});
  } else if (chance < 75) {
    Add(rank, FailureRecord{"DEVICE", "simulated", true});
  } else {
    return;  // it goes on
  }
  Add(rank, RankExited{});
}

void NullAgents::LookAt(Part& part, int node, std::vector<RankEvents>& group) {
  const AgentIdentity agent = AgentOf(node);
  const absl::StatusOr<NodeRanks> ranks = fleet_.ReadRanks(agent.node);
  const absl::StatusOr<std::vector<DesiredRank>> desired = fleet_.ReadDesired(agent);
  if (!ranks.ok() || !desired.ok()) return;
  std::set<RankId> wanted;
  for (const DesiredRank& one : *desired) {
    wanted.insert(one.rank.id);
    Rank& rank = part.ranks[{node, one.rank.id}];
    if (rank.pending.empty() && !rank.over) Advance(part, one, rank);
  }
  std::vector<RankId> absent;
  for (const auto& [id, claim] : ranks->ranks) {
    if (wanted.count(id) > 0) continue;
    const auto known = part.ranks.find({node, id});
    if (known == part.ranks.end() || known->second.over) {
      absent.push_back(id);
    } else if (!known->second.over) {
      Add(known->second, RankExited{0, 9, false, ""});
    }
  }
  for (auto it = part.ranks.lower_bound({node, RankId{}});
       it != part.ranks.end() && it->first.first == node; ++it) {
    if (!it->second.pending.empty()) group.push_back({agent, it->first.second, it->second.pending});
  }
  if (absent.empty()) return;
  const absl::StatusOr<bool> changed = fleet_.ReportAbsent(agent, absent);
  if (changed.ok() && *changed) stores_.wakeups().Wake("queue");
}

void NullAgents::Report(Part& part, const std::vector<RankEvents>& group) {
  const auto answers = fleet_.AppendGroup(group);
  bool changed = false;
  for (size_t i = 0; i < group.size(); ++i) {
    int node = 0;
    const absl::string_view number = absl::StripPrefix(group[i].agent.node, kPrefix);
    if (!absl::SimpleAtoi(number, &node)) continue;
    const auto known = part.ranks.find({node, group[i].rank});
    if (known == part.ranks.end()) continue;
    Rank& rank = known->second;
    if (!answers[i].ok()) {
      if (!absl::IsUnavailable(answers[i].status())) Complain(answers[i].status().ToString());
      continue;
    }
    changed |= answers[i]->job_changed;
    const bool success =
        std::any_of(rank.pending.begin(), rank.pending.end(), [](const RankEventRecord& event) {
          const auto* finished = std::get_if<RankFinished>(&event.what);
          return finished != nullptr && !finished->suspended;
        });
    std::erase_if(rank.pending, [&](const RankEventRecord& event) {
      return event.sequence <= answers[i]->acked_sequence;
    });
    if (!answers[i]->fenced && !(rank.over && rank.pending.empty())) continue;
    if (!answers[i]->fenced && success) ++finished_;
    part.ranks.erase(known);
    for (const std::string& peer : answers[i]->nodes) stores_.wakeups().Wake("node:" + peer);
  }
  if (changed) stores_.wakeups().Wake("queue");
}

}  // namespace trainyard::testing
