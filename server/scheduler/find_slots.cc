// Where a gang goes: SlotTable's search for free slots.

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "server/scheduler/slots.h"

namespace trainyard {
namespace {

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

// A gang of one goes to the node that then has the fewest free slots left, among equals to the
// first by name.
Placement::Rank SlotTable::FindOne(const std::vector<int>& pool_of) const {
  Placement::Rank best;
  int least = 0;
  for (const Node& node : nodes_) {
    if (node.free == 0) continue;
    int free = 0;
    int first = 0;
    for (const Slot& slot : node.slots) {
      if (slot.taken || pool_of[slot.kind] < 0) continue;
      if (free++ == 0) first = slot.index;
    }
    if (free == 0 || (least > 0 && free >= least)) continue;
    least = free;
    best = {.node = node.name, .slots = {first}};
    if (least == 1) break;
  }
  return best;
}

// Among pools that do with equally few nodes the one of which least stays free, so that large gangs
// find the others whole.
std::vector<Placement::Rank> SlotTable::FindIn(const SlotDemand& demand,
                                               const std::vector<Pool>& pools,
                                               const std::vector<Counts>& counts) const {
  std::vector<int> pool_of = PoolOfEachKind(demand, pools);
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    if (kinds_[kind].kept) pool_of[kind] = -1;
  }
  if (demand.count == 1) return {FindOne(pool_of)};
  std::vector<std::vector<Candidate>> candidates(pools.size());
  for (const Node& node : nodes_) {
    if (node.free == 0) continue;
    for (const Slot& slot : node.slots) {
      const int pool = pool_of[slot.kind];
      if (slot.taken || pool < 0) continue;
      if (candidates[pool].empty() || candidates[pool].back().node != &node) {
        candidates[pool].push_back({.node = &node});
      }
      candidates[pool].back().slots.push_back(slot.index);
    }
  }
  std::vector<Placement::Rank> best;
  std::pair<int, int> least;  // nodes, slots that are free
  for (size_t i = 0; i < pools.size(); ++i) {
    std::vector<Placement::Rank> ranks = LayOut(std::move(candidates[i]), demand.count);
    const std::pair<int, int> takes(NodesIn(ranks), counts[i].free - counts[i].kept);
    if (!best.empty() && takes >= least) continue;
    best = std::move(ranks);
    least = takes;
  }
  return best;
}

// Beginning with the nodes that have most free slots takes the fewest nodes. The last part goes to
// the node that then has the fewest left.
std::vector<Placement::Rank> SlotTable::LayOut(std::vector<Candidate> candidates, int count) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.slots.size() > b.slots.size(); });
  std::vector<Placement::Rank> ranks;
  size_t next = 0;
  while (static_cast<int>(ranks.size()) < count) {
    const size_t left = count - ranks.size();
    size_t chosen = next;
    if (candidates[next].slots.size() >= left) {
      while (chosen + 1 < candidates.size() && candidates[chosen + 1].slots.size() >= left) {
        ++chosen;
      }
      // Among equals the first by name.
      while (chosen > next &&
             candidates[chosen - 1].slots.size() == candidates[chosen].slots.size()) {
        --chosen;
      }
    }
    const Candidate& from = candidates[chosen];
    for (size_t i = 0; i < from.slots.size() && i < left; ++i) {
      ranks.push_back({.node = from.node->name, .slots = {from.slots[i]}});
    }
    ++next;
  }
  return ranks;
}

std::vector<Placement::Rank> SlotTable::FindMore(const SlotDemand& demand,
                                                 const std::vector<Placement::Rank>& ranks,
                                                 int most) const {
  std::set<std::string> on;
  for (const Placement::Rank& rank : ranks) on.insert(rank.node);
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
    return std::make_tuple(on.count(b.node->name), b.slots.size()) <
           std::make_tuple(on.count(a.node->name), a.slots.size());
  });
  std::vector<Placement::Rank> more;
  for (const Candidate& candidate : candidates) {
    for (const int slot : candidate.slots) {
      if (static_cast<int>(more.size()) == most) return more;
      more.push_back({.node = candidate.node->name, .slots = {slot}});
    }
  }
  return more;
}

}  // namespace trainyard
