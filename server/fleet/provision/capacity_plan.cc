#include "server/fleet/provision/capacity_plan.h"

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr int kMostKinds = 3;  // of jobs that are named as the reason of an ask

// Slots of one size that compute alike; those that are coming come from one pool.
struct Supply {
  std::string device;
  std::string arithmetic;
  int64_t bytes = 0;
  const Pool* pool = nullptr;  // that they come from; null: they are there
  int64_t free = 0;
  int64_t present = 0;
};

// A pool as the plan goes on.
struct PoolNodes {
  const Pool* pool = nullptr;
  std::string arithmetic;  // empty: not known
  int live = 0;            // requests that have not ended, and new ones
  int kept = 0;            // of these those that are not given up, drained or away
  int fresh = 0;           // of these new ones
  bool open = true;        // something may be asked of it
  bool serves = true;      // whoever is looked at next would get the slots of new nodes
  int kinds = 0;           // of jobs for which it is asked
  std::string why;
};

bool Fits(const SlotDemand& demand, const std::string& device, const std::string& arithmetic,
          int64_t bytes) {
  return (demand.device.empty() || demand.device == device) && bytes >= demand.bytes &&
         (demand.arithmetic.empty() || arithmetic.empty() || demand.arithmetic == arithmetic);
}

// Slots that one gang may have together.
std::string GroupOf(const SlotDemand& demand, const std::string& device,
                    const std::string& arithmetic) {
  return demand.mixed || demand.count == 1 ? device : absl::StrCat(device, "/", arithmetic);
}

class Planner {
 public:
  Planner(const std::vector<Pool>& pools, const std::map<std::string, PoolState>& states,
          const CapacityView& view, const std::vector<NodeRequest>& requests)
      : view_(view) {
    for (const Pool& pool : pools) {
      PoolNodes& nodes = pools_.emplace_back();
      nodes.pool = &pool;
      if (const auto state = states.find(pool.name); state != states.end()) {
        nodes.arithmetic = state->second.arithmetic;
        nodes.open = state->second.not_before <= view.now;
      }
    }
    for (const CapacityView::Node& node : view.nodes) {
      by_name_[node.name] = &node;
      for (const CapacityView::Slot& slot : node.slots) {
        Supply& supply = SupplyOf(slot.device, slot.arithmetic, slot.bytes, nullptr);
        supply.present += node.takes_work ? 1 : 0;
        supply.free += slot.free ? 1 : 0;
      }
    }
    for (const NodeRequest& request : requests) {
      if (request.state == NodeRequestState::kEnded) continue;
      PoolNodes* const nodes = FindPool(request.pool);
      if (nodes == nullptr) continue;
      ++nodes->live;
      if (IsKept(request)) ++nodes->kept;
      // What its engine has refused may come, and others need not wait for it.
      const bool refused = request.state == NodeRequestState::kWanted && !nodes->open;
      if (IsComing(request) && !refused) Come(*nodes, 1);
    }
  }

  // One that comes, or is there and takes work.
  bool IsKept(const NodeRequest& request) const {
    const auto there = by_name_.find(request.node);
    return request.state != NodeRequestState::kReleasing &&
           (there == by_name_.end() || there->second->takes_work);
  }

  // One that is neither there nor given up.
  bool IsComing(const NodeRequest& request) const {
    return (request.state == NodeRequestState::kWanted ||
            request.state == NodeRequestState::kAsked) &&
           by_name_.count(request.node) == 0;
  }

  void ServeAll() {
    for (const CapacityView::Waiting& waiting : view_.waiting) {
      std::map<PoolNodes*, int64_t> asked_for;
      for (int64_t i = 0; i < waiting.jobs; ++i) {
        PoolNodes* asked = nullptr;
        if (!Serve(waiting.demand, asked)) break;
        if (asked != nullptr) ++asked_for[asked];
      }
      for (const auto& [nodes, jobs] : asked_for) {
        if (++nodes->kinds > kMostKinds) continue;
        absl::StrAppend(&nodes->why, nodes->why.empty() ? "" : "; ", jobs,
                        jobs == 1 ? " job that needs " : " jobs, each of which needs ",
                        DescribeDemand(waiting.demand));
      }
    }
    for (PoolNodes& nodes : pools_) {
      if (nodes.kinds > kMostKinds) absl::StrAppend(&nodes.why, "; and others");
      const int missing = std::min(nodes.pool->min - nodes.kept, nodes.pool->max - nodes.live);
      if (missing <= 0 || !nodes.open) continue;
      Ask(nodes, missing);
      absl::StrAppend(&nodes.why, nodes.why.empty() ? "" : "; ", "at least ", nodes.pool->min,
                      " are kept");
    }
  }

  std::vector<CapacityAsk> Asks() const {
    std::vector<CapacityAsk> asks;
    for (const PoolNodes& nodes : pools_) {
      if (nodes.fresh > 0) asks.push_back({nodes.pool->name, nodes.fresh, nodes.why});
    }
    return asks;
  }

  // Nodes of pools that were taken out of the file, unless somebody is on them.
  std::vector<std::string> OfNoPool(const std::vector<NodeRequest>& requests) {
    std::vector<std::string> names;
    for (const NodeRequest& request : requests) {
      const bool given =
          request.state == NodeRequestState::kWanted || request.state == NodeRequestState::kAsked;
      const auto there = by_name_.find(request.node);
      const bool held = there != by_name_.end() && there->second->holds;
      if (given && !held && FindPool(request.pool) == nullptr) names.push_back(request.node);
    }
    return names;
  }

  // Nodes that nobody needs, those that are there before those that come; each takes its slots from
  // what is left over.
  std::vector<std::pair<const NodeRequest*, PoolNodes*>> Unneeded(
      const std::vector<NodeRequest>& requests) {
    std::vector<std::pair<const NodeRequest*, PoolNodes*>> unneeded;
    for (const bool coming : {false, true}) {
      for (const NodeRequest& request : requests) {
        PoolNodes* const nodes = FindPool(request.pool);
        if (nodes == nullptr || request.state == NodeRequestState::kEnded ||
            request.state == NodeRequestState::kReleasing) {
          continue;
        }
        const auto there = by_name_.find(request.node);
        if (coming != (there == by_name_.end())) continue;
        if (coming ? TakeComing(*nodes) : TakeIdle(*there->second)) {
          unneeded.emplace_back(&request, nodes);
        }
      }
    }
    return unneeded;
  }

 private:
  PoolNodes* FindPool(const std::string& name) {
    const auto found = std::find_if(pools_.begin(), pools_.end(),
                                    [&](const PoolNodes& one) { return one.pool->name == name; });
    return found == pools_.end() ? nullptr : &*found;
  }

  Supply& SupplyOf(const std::string& device, const std::string& arithmetic, int64_t bytes,
                   const Pool* pool) {
    const auto [known, added] =
        supply_of_.try_emplace({device, arithmetic, bytes, pool}, supplies_.size());
    if (added) {
      supplies_.push_back(
          {.device = device, .arithmetic = arithmetic, .bytes = bytes, .pool = pool});
    }
    return supplies_[known->second];
  }

  Supply& ComingOf(const PoolNodes& nodes) {
    // Nodes of unknown arithmetic are like nothing but each other.
    const std::string arithmetic =
        nodes.arithmetic.empty() ? absl::StrCat("pool ", nodes.pool->name) : nodes.arithmetic;
    return SupplyOf(nodes.pool->device, arithmetic, nodes.pool->bytes, nodes.pool);
  }

  void Come(PoolNodes& nodes, int count) {
    Supply& coming = ComingOf(nodes);
    coming.free += int64_t{count} * nodes.pool->slots;
  }

  void Ask(PoolNodes& nodes, int count) {
    nodes.live += count;
    nodes.kept += count;
    nodes.fresh += count;
    Come(nodes, count);
  }

  bool FitsSupply(const SlotDemand& demand, const Supply& supply) const {
    const bool unknown =
        supply.pool != nullptr && supply.arithmetic == absl::StrCat("pool ", supply.pool->name);
    return Fits(demand, supply.device, unknown ? "" : supply.arithmetic, supply.bytes);
  }

  std::map<std::string, int64_t> FreeByGroup(const SlotDemand& demand) const {
    std::map<std::string, int64_t> free;
    for (const Supply& supply : supplies_) {
      if (FitsSupply(demand, supply)) {
        free[GroupOf(demand, supply.device, supply.arithmetic)] += supply.free;
      }
    }
    return free;
  }

  // What is there first, the smallest that serve first.
  void Take(const SlotDemand& demand, const std::string& group) {
    std::vector<Supply*> serve;
    for (Supply& supply : supplies_) {
      if (FitsSupply(demand, supply) &&
          GroupOf(demand, supply.device, supply.arithmetic) == group) {
        serve.push_back(&supply);
      }
    }
    std::stable_sort(serve.begin(), serve.end(), [](const Supply* a, const Supply* b) {
      return std::tuple(a->pool != nullptr, a->bytes) < std::tuple(b->pool != nullptr, b->bytes);
    });
    int64_t left = demand.count;
    for (Supply* supply : serve) {
      const int64_t taken = std::min(left, supply->free);
      supply->free -= taken;
      left -= taken;
    }
  }

  // `asked`: the pool that had to be asked, if any. False: nobody can give it what it needs now.
  bool Serve(const SlotDemand& demand, PoolNodes*& asked) {
    const std::map<std::string, int64_t> free = FreeByGroup(demand);
    for (const auto& [group, count] : free) {
      if (count < demand.count) continue;
      Take(demand, group);
      return true;
    }
    for (PoolNodes& nodes : pools_) {
      if (!nodes.open || !nodes.serves ||
          !Fits(demand, nodes.pool->device, nodes.arithmetic, nodes.pool->bytes)) {
        continue;
      }
      const Supply& coming = ComingOf(nodes);
      const std::string group = GroupOf(demand, coming.device, coming.arithmetic);
      const auto have = free.find(group);
      const int64_t missing = demand.count - (have == free.end() ? 0 : have->second);
      const int64_t needed = (missing + nodes.pool->slots - 1) / nodes.pool->slots;
      if (nodes.live + needed > nodes.pool->max) continue;
      Ask(nodes, static_cast<int>(needed));
      Take(demand, group);
      asked = &nodes;
      return true;
    }
    Keep(demand);
    return false;
  }

  void Keep(const SlotDemand& demand) {
    std::map<std::string, int64_t> present;
    for (const Supply& supply : supplies_) {
      if (!FitsSupply(demand, supply)) continue;
      present[GroupOf(demand, supply.device, supply.arithmetic)] += supply.present;
    }
    for (Supply& supply : supplies_) {
      if (!FitsSupply(demand, supply)) continue;
      if (present[GroupOf(demand, supply.device, supply.arithmetic)] >= demand.count) {
        supply.free = 0;
      }
    }
    // It would keep the slots of new nodes, too: they would serve nobody behind.
    for (PoolNodes& nodes : pools_) {
      const Supply& coming = ComingOf(nodes);
      const bool keeps = present[GroupOf(demand, coming.device, coming.arithmetic)] >= demand.count;
      if (keeps && FitsSupply(demand, coming)) nodes.serves = false;
    }
  }

  bool TakeComing(PoolNodes& nodes) {
    Supply& coming = ComingOf(nodes);
    if (coming.free < nodes.pool->slots) return false;
    coming.free -= nodes.pool->slots;
    return true;
  }

  // Whether all that the node has is left over.
  bool TakeIdle(const CapacityView::Node& node) {
    if (node.away) return true;  // what was there is lost, and goes on elsewhere
    if (node.holds) return false;
    if (!node.takes_work) return true;  // drained or cordoned, and empty
    std::map<Supply*, int64_t> of_node;
    for (const CapacityView::Slot& slot : node.slots) {
      ++of_node[&SupplyOf(slot.device, slot.arithmetic, slot.bytes, nullptr)];
    }
    for (const auto& [supply, count] : of_node) {
      if (supply->free < count) return false;
    }
    for (const auto& [supply, count] : of_node) supply->free -= count;
    return true;
  }

  const CapacityView& view_;
  std::vector<PoolNodes> pools_;
  std::deque<Supply> supplies_;  // which does not move them as it grows
  std::map<std::tuple<std::string, std::string, int64_t, const Pool*>, size_t> supply_of_;
  std::map<std::string, const CapacityView::Node*> by_name_;
};

}  // namespace

CapacityPlan PlanCapacity(const std::vector<Pool>& pools,
                          const std::map<std::string, PoolState>& states, const CapacityView& view,
                          const std::vector<NodeRequest>& requests,
                          const std::map<std::string, absl::Time>& idle_since) {
  Planner planner(pools, states, view, requests);
  planner.ServeAll();
  CapacityPlan plan{.asks = planner.Asks(), .releases = planner.OfNoPool(requests)};
  for (const auto& [request, nodes] : planner.Unneeded(requests)) {
    const auto before = idle_since.find(request->node);
    const absl::Time since =
        before == idle_since.end() ? view.now : std::min(before->second, view.now);
    plan.idle_since[request->node] = since;
    if (view.now - since < nodes->pool->idle_ttl) continue;
    const bool kept = planner.IsKept(*request);
    if (kept && nodes->kept <= nodes->pool->min) continue;
    plan.releases.push_back(request->node);
    if (kept) --nodes->kept;
  }
  return plan;
}

void LearnArithmetic(const std::vector<Pool>& pools, const CapacityView& view,
                     const std::vector<NodeRequest>& requests,
                     std::map<std::string, PoolState>& states) {
  std::map<std::string, const Pool*> pool_of;  // by node
  for (const Pool& pool : pools) {
    for (const NodeRequest& request : requests) {
      if (request.pool == pool.name) pool_of[request.node] = &pool;
    }
  }
  for (const CapacityView::Node& node : view.nodes) {
    const auto pool = pool_of.find(node.name);
    if (pool == pool_of.end()) continue;
    for (const CapacityView::Slot& slot : node.slots) {
      if (slot.device != pool->second->device) continue;
      states[pool->second->name].arithmetic = slot.arithmetic;
      break;
    }
  }
}

}  // namespace trainyard
