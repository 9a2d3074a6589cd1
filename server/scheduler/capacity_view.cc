#include "server/scheduler/capacity_view.h"

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <utility>

#include "server/scheduler/slot_limits.h"
#include "storage/base/arithmetic.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

// A class of the queue, its first job, and how many jobs it has.
struct CountedClass {
  const DemandClass* demand = nullptr;
  const JobRecord* first = nullptr;
  int64_t jobs = 0;
};

// Without jobs of `left_out`.
std::vector<CountedClass> CountClasses(const WaitingQueue& queue,
                                       const std::set<std::string>& left_out) {
  std::vector<CountedClass> counted;
  for (const auto& [demand, by_reason] : queue.classes()) {
    CountedClass of_class{.demand = &demand};
    for (const auto& [reason, jobs] : by_reason) {
      of_class.jobs += static_cast<int64_t>(jobs.size());
      // They are among the first of their class, as what is placed is.
      for (const auto& job : jobs) {
        if (left_out.count(job->uid) > 0) {
          --of_class.jobs;
          continue;
        }
        if (of_class.first == nullptr || RunsBefore(*job, *of_class.first)) {
          of_class.first = job.get();
        }
        break;
      }
    }
    if (of_class.first != nullptr) counted.push_back(of_class);
  }
  std::sort(counted.begin(), counted.end(), [](const CountedClass& a, const CountedClass& b) {
    return RunsBefore(*a.first, *b.first);
  });
  return counted;
}

// Texts of fingerprints, of which all nodes have a few.
using ArithmeticTexts = std::map<Arithmetic, std::string>;

const std::string& TextOf(const Arithmetic& arithmetic, ArithmeticTexts& texts) {
  const auto [known, added] = texts.try_emplace(arithmetic);
  if (added) known->second = ArithmeticToText(CertainArithmetic(arithmetic));
  return known->second;
}

CapacityView::Node NodeOf(const NodeRecord& record, const std::multiset<int>& held,
                          const std::set<int>& placed, absl::Time now, ArithmeticTexts& texts) {
  CapacityView::Node node{.name = record.name,
                          .takes_work = TakesWorkNow(record, now),
                          .away = !record.reachable || record.lease_end <= now,
                          .holds = !held.empty() || !placed.empty()};
  for (const LostRank& lost : record.lost_ranks) node.lost_jobs.push_back(lost.id.job_uid);
  for (const SlotRecord& slot : record.slots) {
    const bool lost = LostRankOn(record, slot.index) != nullptr;
    node.holds = node.holds || lost;
    node.slots.push_back({.device = slot.device,
                          .arithmetic = TextOf(slot.arithmetic, texts),
                          .bytes = slot.memory_bytes,
                          .free = node.takes_work && !lost && held.count(slot.index) == 0 &&
                                  placed.count(slot.index) == 0});
  }
  return node;
}

// Of each class as many jobs as the limit of their project lets start, as the pass itself gave it
// out.
void TakeWithinLimits(const SchedulerState& state, const Pass& pass,
                      const std::vector<CountedClass>& classes, CapacityView& view) {
  const SlotLimits& limits = *state.fold().slot_limits();
  SlotLedger ledger(limits, state.held_by_projects());
  const auto take = [&](const std::string& uid, int slots) {
    const auto job = state.fold().FindWaiting(uid);
    if (job != nullptr) ledger.Take(*job, slots == 0 ? WholeDemandOf(*job).count : slots);
  };
  for (const Placement& placement : pass.decisions.placements) {
    take(placement.job_uid, SlotsIn(placement.ranks));
  }
  for (const std::string& uid : pass.awaited) take(uid, 0);
  for (const Resize& resize : pass.decisions.resizes) {
    const auto holder = state.fold().holders().find(resize.job_uid);
    if (holder == state.fold().holders().end()) continue;
    ledger.Take(*holder->second.job,
                SlotsIn(resize.ranks) - SlotsIn(SlotsOf(holder->second.attempt)));
  }
  std::set<DemandClass> limited;  // that wait for it, and have their slots
  for (const WaitingClass& one : state.waiting()) {
    if (one.reason.code == reason::kProjectLimit) limited.insert(*one.demand);
  }
  std::set<std::string> kept;  // projects of which what is left is kept for a job ahead
  for (const CountedClass& counted : classes) {
    const JobRecord& job = *counted.first;
    const SlotDemand demand = WholeDemandOf(job);
    const bool ever = demand.count <= ledger.Limit(job);
    if (limited.count(*counted.demand) > 0) {
      if (ever) ledger.Take(job, ledger.Left(job));
      if (ever) kept.insert(job.project);
      continue;
    }
    // One that no present node could hold is asked for in any case, or jobs that others could hold
    // would keep the limit used up for ever.
    const bool in_turn = ever && kept.count(job.project) == 0;
    const int may_start = std::max(in_turn ? 1 : 0, ledger.Left(job) / demand.count);
    const int64_t jobs = std::min<int64_t>(counted.jobs, may_start);
    if (jobs == 0) continue;
    ledger.Take(job, static_cast<int>(std::min<int64_t>(jobs * demand.count, INT_MAX / 2)));
    view.waiting.push_back({.demand = demand, .jobs = jobs});
  }
}

}  // namespace

CapacityView CapacityOf(const SchedulerState& state, const Pass& pass, int64_t leader_epoch) {
  CapacityView view{.now = state.now(), .leader_epoch = leader_epoch};
  std::set<std::string> left_out;
  std::map<std::string, std::set<int>> placed;
  for (const Placement& placement : pass.decisions.placements) {
    left_out.insert(placement.job_uid);
    for (const Placement::Rank& rank : placement.ranks) {
      placed[rank.node].insert(rank.slots.begin(), rank.slots.end());
    }
  }
  left_out.insert(pass.awaited.begin(), pass.awaited.end());
  for (const std::string& uid : state.resized()) left_out.insert(uid);
  TakeWithinLimits(state, pass, CountClasses(state.queue(), left_out), view);
  ArithmeticTexts texts;
  for (const auto& [name, node] : state.fold().nodes()) {
    const auto now_placed = placed.find(name);
    view.nodes.push_back(NodeOf(node, state.held().On(name),
                                now_placed == placed.end() ? std::set<int>() : now_placed->second,
                                state.now(), texts));
  }
  return view;
}

}  // namespace trainyard
