// Where a gang goes: SlotTable's search for free slots.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "server/scheduler/rank_groups.h"
#include "server/scheduler/slots.h"

namespace trainyard {
namespace {

bool IsNear(const SlotDemand& demand, const std::string& node) {
  return std::find(demand.near.begin(), demand.near.end(), node) != demand.near.end();
}

int NodesIn(const std::vector<Placement::Rank>& ranks) {
  std::set<absl::string_view> nodes;
  for (const Placement::Rank& rank : ranks) nodes.insert(rank.node);
  return static_cast<int>(nodes.size());
}

}  // namespace

// On the preferred device. Of its pools that could serve now, one in which an elastic gang gets
// most.
std::optional<std::vector<Placement::Rank>> SlotTable::Find(const SlotDemand& demand) const {
  const std::vector<Pool> pools = PoolsFor(demand);
  const std::vector<Counts> counts = CountEach(demand, pools);
  std::vector<Pool> able;
  std::vector<Counts> of_able;
  int reach = 0;
  for (size_t i = 0; i < pools.size(); ++i) {
    if (!able.empty() && groups_[able[0].begin].device != groups_[pools[i].begin].device) break;
    const int open = counts[i].free - counts[i].kept;
    if (open < demand.count) continue;
    const int gets = std::min(open, std::max(demand.count, demand.most));
    if (gets < reach) continue;
    if (gets > reach) {
      able.clear();
      of_able.clear();
    }
    reach = gets;
    able.push_back(pools[i]);
    of_able.push_back(counts[i]);
  }
  if (able.empty()) return std::nullopt;
  return FindIn(demand, able, of_able);
}

// A gang of one goes to the node that then has the fewest free slots left, among equals to one that
// has its state, or the first by name.
Placement::Rank SlotTable::FindOne(const SlotDemand& demand,
                                   const std::vector<int>& pool_of) const {
  Placement::Rank best;
  int least = 0;
  bool best_is_near = false;
  for (const Node& node : nodes_) {
    if (node.free == 0) continue;
    int free = 0;
    int first = 0;
    for (const Slot& slot : node.slots) {
      if (slot.taken || pool_of[slot.kind] < 0) continue;
      if (free++ == 0) first = slot.index;
    }
    const bool near = demand.near.empty() || IsNear(demand, node.name);
    if (free == 0 || (least > 0 && (free > least || (free == least && (!near || best_is_near))))) {
      continue;
    }
    least = free;
    best = {.node = node.name, .slots = {first}};
    best_is_near = near;
    if (least == 1 && near) break;
  }
  return best;
}

// Among pools that split equally few groups, and then do with equally few nodes, the one of which
// least stays free, so that large gangs find the others whole.
std::vector<Placement::Rank> SlotTable::FindIn(const SlotDemand& demand,
                                               const std::vector<Pool>& pools,
                                               const std::vector<Counts>& counts) const {
  std::vector<int> pool_of = PoolOfEachKind(demand, pools);
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    if (kinds_[kind].kept) pool_of[kind] = -1;
  }
  if (demand.count == 1) return {FindOne(demand, pool_of)};
  std::vector<std::vector<Candidate>> candidates(pools.size());
  for (const Node& node : nodes_) {
    if (node.free == 0) continue;
    for (const Slot& slot : node.slots) {
      const int pool = pool_of[slot.kind];
      if (slot.taken || pool < 0) continue;
      if (candidates[pool].empty() || candidates[pool].back().node != &node) {
        candidates[pool].push_back({.node = &node, .near = IsNear(demand, node.name)});
      }
      candidates[pool].back().slots.push_back(slot.index);
    }
  }
  std::vector<Placement::Rank> best;
  std::tuple<int, int, int> least;  // groups that are split, nodes, slots that are free
  for (size_t i = 0; i < pools.size(); ++i) {
    std::vector<Placement::Rank> ranks =
        LayOut(std::move(candidates[i]), demand.count, demand.group);
    const std::tuple<int, int, int> takes(GroupsOverNodes(ranks, demand.group), NodesIn(ranks),
                                          counts[i].free - counts[i].kept);
    if (!best.empty() && takes >= least) continue;
    best = std::move(ranks);
    least = takes;
  }
  return best;
}

// Beginning with the nodes that have most parts takes the fewest nodes; of those with equally many
// the one that keeps the fewest slots. The last parts go to the node that then has the fewest left.
void SlotTable::TakeParts(size_t count, size_t unit, std::vector<Candidate>& candidates,
                          std::vector<Placement::Rank>& ranks) {
  if (count == 0) return;
  size_t most = 0;
  for (Candidate& one : candidates) {
    one.parts = unit == 1 ? one.slots.size() : one.slots.size() / unit;
    most = std::max(most, one.parts);
  }
  const bool on_one_node = most >= count;  // then their order does not matter
  if (!on_one_node) {
    std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
      return std::make_tuple(b.parts, a.slots.size(), b.near) <
             std::make_tuple(a.parts, b.slots.size(), a.near);
    });
  }
  for (size_t next = 0; count > 0; ++next) {
    const bool last = on_one_node || candidates[next].parts >= count;
    Candidate& from = last ? WithJustEnough(count, candidates) : candidates[next];
    const size_t parts = std::min(from.parts, count);
    const auto end = from.slots.begin() + static_cast<std::ptrdiff_t>(parts * unit);
    for (auto slot = from.slots.begin(); slot != end; ++slot) {
      ranks.push_back({.node = from.node->name, .slots = {*slot}});
    }
    from.slots.erase(from.slots.begin(), end);
    from.parts -= parts;
    count -= parts;
  }
}

// Among equals one that has the gang's state, or the first by name.
SlotTable::Candidate& SlotTable::WithJustEnough(size_t parts, std::vector<Candidate>& candidates) {
  Candidate* best = nullptr;
  for (Candidate& one : candidates) {
    if (one.parts < parts) continue;
    const auto key = [](const Candidate& of) {
      return std::make_tuple(of.parts, of.slots.size(), !of.near);
    };
    if (best == nullptr || key(one) < key(*best)) best = &one;
  }
  return *best;
}

// Whole groups first, as many as there is room for. Others are made of what the nodes have left.
std::vector<Placement::Rank> SlotTable::LayOut(std::vector<Candidate> candidates, int count,
                                               int group) {
  std::vector<Placement::Rank> ranks;
  const auto all = static_cast<size_t>(count), unit = static_cast<size_t>(group);
  if (group > 1) {
    size_t whole = 0;
    for (const Candidate& one : candidates) whole += one.slots.size() / unit;
    TakeParts(std::min(whole, all / unit), unit, candidates, ranks);
  }
  TakeParts(all - ranks.size(), 1, candidates, ranks);
  KeepGroupsTogether(ranks, group);
  return ranks;
}

std::vector<Placement::Rank> SlotTable::FindMore(const SlotDemand& demand,
                                                 const std::vector<Placement::Rank>& ranks,
                                                 int most) const {
  std::map<absl::string_view, size_t> on;  // how many ranks there are
  for (const Placement::Rank& rank : ranks) ++on[rank.node];
  const Pool pool = PoolOf(demand, ranks);
  const Counts counts = CountIn(demand, pool);
  if (pool.empty() || most < 1 || counts.free <= counts.kept) return {};
  std::vector<Candidate> candidates;
  for (const Node& node : nodes_) {
    if (node.free == 0) continue;
    Candidate candidate{.node = &node};
    for (const Slot& slot : node.slots) {
      const Kind& kind = kinds_[slot.kind];
      if (slot.taken || kind.kept || !kind.Serves(demand, pool)) continue;
      candidate.slots.push_back(slot.index);
    }
    if (!candidate.slots.empty()) candidates.push_back(std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&on](const auto& a, const auto& b) {
    const auto of_a = on.find(a.node->name), of_b = on.find(b.node->name);
    return std::make_tuple(of_b != on.end(), b.slots.size()) <
           std::make_tuple(of_a != on.end(), a.slots.size());
  });
  std::vector<Placement::Rank> more;
  const auto wanted = static_cast<size_t>(most);
  const auto take = [&](Candidate& from, size_t count) {
    count = std::min({count, from.slots.size(), wanted - more.size()});
    const auto end = from.slots.begin() + static_cast<std::ptrdiff_t>(count);
    for (auto slot = from.slots.begin(); slot != end; ++slot) {
      more.push_back({.node = from.node->name, .slots = {*slot}});
    }
    from.slots.erase(from.slots.begin(), end);
  };
  if (demand.group > 1) {
    const auto unit = static_cast<size_t>(demand.group);
    for (Candidate& from : candidates) {  // groups that the gang has begun on this node
      const auto known = on.find(from.node->name);
      const size_t missing = known == on.end() ? 0 : (unit - known->second % unit) % unit;
      if (missing <= std::min(from.slots.size(), wanted - more.size())) take(from, missing);
    }
    for (Candidate& from : candidates) {  // whole groups
      take(from, std::min(from.slots.size(), wanted - more.size()) / unit * unit);
    }
  }
  for (Candidate& from : candidates) take(from, from.slots.size());
  return more;
}

}  // namespace trainyard
