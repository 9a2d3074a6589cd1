#include "tests/simulation/sim_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr absl::Duration kLease = absl::Seconds(10);
// The rate of the slowest clock.
constexpr double kSlowest = 1 - SimClock::kMostDrift / 1000.0;

FleetOptions OptionsOfFleet() {
  FleetOptions options;
  options.checkpoint_root = "file:///sim";
  options.lease = kLease;
  options.renewals_rest_per_node = absl::ZeroDuration();  // rounds of the pool take no time here
  return options;
}

// Leases are read with every pass: the invariants judge them as the leader does.
LoopOptions OptionsOfLoop(const std::string& holder) {
  PlannerOptions planner;
  planner.grow_after = absl::Seconds(3);
  return {.holder = holder,
          .planner = planner,
          .lease = kLease,
          .start_limit = kSimStartLimit,
          .leases_every = absl::ZeroDuration()};
}

bool IsFull(const NodeRecord& node) {
  return node.report.disk_free_bytes.value_or(INT64_MAX) < int64_t{1} << 20;
}

}  // namespace

SimServer::SimServer(MemoryStores& stores, SimFaults& faults, SimTruth& truth, Clock& clock,
                     const std::string& holder, SimVersion version, std::function<void()> meanwhile)
    : stores_(stores),
      truth_(truth),
      clock_(clock),
      version_(version),
      store_(stores, faults, *this, std::move(meanwhile)),
      pool_(0, clock),
      fleet_(store_, stores.wakeups(), pool_, clock, OptionsOfFleet()),
      hub_(store_, stores.wakeups(), pool_, WatchOptions{.batch = 3}),
      loop_(store_, stores.wakeups(), clock, OptionsOfLoop(holder)) {}

void SimServer::OnLed(int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  judge_.emplace(kLease);
  judges_since_ = absl::InfiniteDuration();
}

void SimServer::OnSnapshot(const SchedulerSnapshot& snapshot) {
  if (!judge_.has_value()) return;
  judged_ = snapshot.nodes;
  std::vector<NodeRecord*> nodes;
  for (NodeRecord& node : judged_) nodes.push_back(&node);
  judge_->Judge(clock_.SinceBoot(), snapshot.now, nodes);
  const absl::Duration now = truth_.time.now;
  const bool gap = now - answered_ > LeaseJudge::kMostGap * kSlowest;
  if (gap || judges_since_ == absl::InfiniteDuration()) judges_since_ = now;
  answered_ = now;
}

void SimServer::OnApplied() {
  if (judge_.has_value()) judge_->Heard(clock_.SinceBoot());
}

std::set<std::string> SimServer::Reachable() {
  std::set<std::string> reachable;
  const absl::StatusOr<std::vector<NodeRecord>> nodes = stores_.fleet().ListNodes();
  if (!nodes.ok()) return reachable;
  for (const NodeRecord& node : *nodes) {
    if (node.reachable) reachable.insert(node.name);
  }
  return reachable;
}

void SimServer::BeforeApply(const Decisions& decisions) {
  if (!decisions.lost_nodes.empty()) reachable_ = Reachable();
  for (const Placement& placement : decisions.placements) {
    for (const Placement::Rank& rank : placement.ranks) {
      const auto full = std::find_if(judged_.begin(), judged_.end(), [&](const NodeRecord& node) {
        return node.name == rank.node && IsFull(node);
      });
      if (full == judged_.end()) continue;
      truth_.breach(absl::StrCat(placement.job_uid, " is placed on ", rank.node,
                                 ", whose disk is known to be full"));
    }
  }
}

// No node is declared lost that still had time to renew its lease, or that had too little of it
// since the store came back.
void SimServer::AfterApply(const Decisions& decisions) {
  if (decisions.lost_nodes.empty()) return;
  const std::set<std::string> reachable = Reachable();
  const absl::Duration margin = PlannerOptions().lease_margin;
  const absl::Duration now = truth_.time.now;
  for (const std::string& node : reachable_) {
    if (reachable.count(node) > 0) continue;
    ++truth_.losses;
    const absl::Duration silent = now - truth_.renewed[node];
    if (silent < (kLease + margin) * kSlowest) {
      truth_.breach(absl::StrCat(node, " is lost ", absl::FormatDuration(silent),
                                 " after its lease was renewed"));
    }
    if (truth_.renewed[node] < truth_.back_at &&
        now - truth_.back_at < (LeaseJudge::kLeastAfterGap + margin) * kSlowest) {
      truth_.breach(absl::StrCat(node, " is lost ", absl::FormatDuration(now - truth_.back_at),
                                 " after the store came back"));
    }
  }
}

}  // namespace trainyard
