#include "server/scheduler/slots.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/printable.h"

namespace trainyard {
namespace {

constexpr absl::string_view kDevices[] = {"CUDA", "CPU"};  // preferred first

bool Allows(const SlotDemand& demand, absl::string_view device) {
  return demand.device.empty() || demand.device == device;
}

std::vector<const NodeRecord*> NodesOf(const SchedulerSnapshot& snapshot) {
  std::vector<const NodeRecord*> nodes;
  for (const NodeRecord& node : snapshot.nodes) nodes.push_back(&node);
  return nodes;
}

}  // namespace

// In the order of devices, then of texts: it decides between pools that are alike.
int SlotTable::GroupOf(const SlotRecord& slot) {
  const auto [known, added] = group_of_.try_emplace(&slot, 0);
  if (!added) return known->second;
  const auto device = std::find(std::begin(kDevices), std::end(kDevices), slot.device);
  Group group{.device = static_cast<size_t>(device - std::begin(kDevices)),
              .arithmetic = ArithmeticToText(CertainArithmetic(slot.arithmetic))};
  const auto same = std::find(groups_.begin(), groups_.end(), group);
  known->second = static_cast<int>(same - groups_.begin());
  if (same == groups_.end()) groups_.push_back(std::move(group));
  return known->second;
}

int SlotTable::KindOf(const SlotRecord& slot) {
  // Most slots are like the one before.
  if (last_slot_ != nullptr && last_slot_->memory_bytes == slot.memory_bytes &&
      last_slot_->device == slot.device && last_slot_->arithmetic == slot.arithmetic) {
    return last_kind_;
  }
  const int group = GroupOf(slot);
  const auto [known, added] =
      kind_of_.try_emplace({slot.memory_bytes, group}, static_cast<int>(kinds_.size()));
  if (added) {
    kinds_.push_back({.device = slot.device, .bytes = slot.memory_bytes, .group = group});
  }
  last_slot_ = &slot;
  last_kind_ = known->second;
  return last_kind_;
}

void SlotTable::SortGroups() {
  std::vector<Group> sorted = groups_;
  std::sort(sorted.begin(), sorted.end());
  for (Kind& kind : kinds_) {
    const auto place = std::lower_bound(sorted.begin(), sorted.end(), groups_[kind.group]);
    kind.group = static_cast<int>(place - sorted.begin());
  }
  groups_ = std::move(sorted);
}

void SlotTable::AddNode(const NodeRecord& record, const std::multiset<int>& held) {
  Node node{.name = record.name};
  node.slots.reserve(record.slots.size());
  for (const SlotRecord& slot : record.slots) {
    const bool taken = held.count(slot.index) > 0 || LostRankOn(record, slot.index) != nullptr;
    const int kind = KindOf(slot);
    node.slots.push_back({.index = slot.index, .kind = kind, .taken = taken});
    ++kinds_[kind].present;
    if (taken) continue;
    ++kinds_[kind].free;
    ++node.free;
  }
  // The smallest slot that serves is used first.
  std::sort(node.slots.begin(), node.slots.end(), [this](const Slot& a, const Slot& b) {
    return std::make_pair(kinds_[a.kind].bytes, a.index) <
           std::make_pair(kinds_[b.kind].bytes, b.index);
  });
  nodes_.push_back(std::move(node));
}

SlotTable::SlotTable(const std::vector<const NodeRecord*>& nodes, const HeldSlots& held,
                     absl::Time now) {
  nodes_.reserve(nodes.size());
  for (const NodeRecord* record : nodes) {
    if (!record->reachable || record->lease_end <= now) {
      ++away_;
    } else if (GivesWorkAway(*record) || IsRevoked(*record)) {
      ++draining_;
    } else if (!CordonReason(*record).empty()) {
      ++cordoned_;
    } else {
      AddNode(*record, held.On(record->name));
    }
  }
  std::sort(nodes_.begin(), nodes_.end(),
            [](const Node& a, const Node& b) { return a.name < b.name; });
  SortGroups();
  kind_of_.clear();
  group_of_.clear();
  last_slot_ = nullptr;
}

SlotTable::SlotTable(const SchedulerSnapshot& snapshot)
    : SlotTable(NodesOf(snapshot), HeldSlots(snapshot.attempts), snapshot.now) {}

void SlotTable::SetApart(const std::string& name) {
  Node* const node = FindNode(name);
  if (node == nullptr) return;
  const auto apart = [&](const Slot& slot) { return kinds_[slot.kind].of_node == name; };
  if (std::any_of(node->slots.begin(), node->slots.end(), apart)) return;
  std::map<int, int> moved;  // from kind to kind
  for (Slot& slot : node->slots) {
    Kind& from = kinds_[slot.kind];
    const auto [to, added] = moved.try_emplace(slot.kind, static_cast<int>(kinds_.size()));
    --from.present;
    if (!slot.taken) --from.free;
    if (added) {
      kinds_.push_back({.device = from.device,
                        .bytes = from.bytes,
                        .group = from.group,
                        .kept = from.kept,
                        .of_node = name});
    }
    slot.kind = to->second;
    ++kinds_[slot.kind].present;
    if (!slot.taken) ++kinds_[slot.kind].free;
  }
}

SlotDemand SlotTable::DemandOf(const JobRecord& job) {
  SlotDemand demand = WholeDemandOf(job);
  const bool unknown = job.arithmetic_rule == ArithmeticRule::kUnknown && demand.count > 1;
  if (const std::string avoided = AvoidedBy(job); !avoided.empty()) {
    SetApart(avoided);
    demand.avoid = avoided;
    if (!CouldHold(demand)) demand.avoid.clear();
  }
  if (unknown && !CouldHold(demand)) demand.mixed = true;
  return demand;
}

void SlotTable::SetAside(const std::string& name) {
  Node* const node = FindNode(name);
  if (node == nullptr) return;
  for (const Slot& slot : node->slots) {
    --kinds_[slot.kind].present;
    if (!slot.taken) --kinds_[slot.kind].free;
  }
  nodes_.erase(nodes_.begin() + (node - nodes_.data()));
  ++cordoned_;
}

// A gang of one is of one fingerprint wherever it is.
std::vector<SlotTable::Pool> SlotTable::PoolsFor(const SlotDemand& demand) const {
  const bool mixed = demand.mixed || std::max(demand.count, demand.most) == 1;
  std::vector<Pool> pools;
  for (int i = 0; i < static_cast<int>(groups_.size()); ++i) {
    const Group& group = groups_[i];
    if (group.device >= std::size(kDevices) || !Allows(demand, kDevices[group.device])) continue;
    if (!demand.arithmetic.empty() && group.arithmetic != demand.arithmetic) continue;
    if (mixed && !pools.empty() && groups_[pools.back().begin].device == group.device) {
      pools.back().end = i + 1;
    } else {
      pools.push_back({i, i + 1});
    }
  }
  return pools;
}

std::vector<int> SlotTable::PoolOfEachKind(const SlotDemand& demand,
                                           const std::vector<Pool>& pools) const {
  std::vector<int> of_group(groups_.size(), -1);
  for (size_t i = 0; i < pools.size(); ++i) {
    std::fill(of_group.begin() + pools[i].begin, of_group.begin() + pools[i].end,
              static_cast<int>(i));
  }
  std::vector<int> of_kind;
  of_kind.reserve(kinds_.size());
  for (const Kind& kind : kinds_) {
    of_kind.push_back(kind.Serves(demand) ? of_group[kind.group] : -1);
  }
  return of_kind;
}

std::vector<SlotTable::Counts> SlotTable::CountEach(const SlotDemand& demand,
                                                    const std::vector<Pool>& pools) const {
  const std::vector<int> pool_of = PoolOfEachKind(demand, pools);
  std::vector<Counts> counts(pools.size());
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (pool_of[i] < 0) continue;
    Counts& of_pool = counts[pool_of[i]];
    of_pool.present += kinds_[i].present;
    of_pool.free += kinds_[i].free;
    if (kinds_[i].kept) of_pool.kept += kinds_[i].free;
  }
  return counts;
}

SlotTable::Counts SlotTable::CountIn(const SlotDemand& demand, const Pool& pool) const {
  return CountEach(demand, {pool}).front();
}

SlotTable::Counts SlotTable::Count(const SlotDemand& demand) const {
  Counts best;
  for (const Counts& counts : CountEach(demand, PoolsFor(demand))) {
    const bool enough = counts.present >= demand.count;
    const bool best_enough = best.present >= demand.count;
    if (std::make_tuple(enough, counts.free, counts.present) >
        std::make_tuple(best_enough, best.free, best.present)) {
      best = counts;
    }
  }
  return best;
}

bool SlotTable::CouldHold(const SlotDemand& demand) const {
  const std::vector<Counts> all = CountEach(demand, PoolsFor(demand));
  return std::any_of(all.begin(), all.end(),
                     [&](const Counts& counts) { return counts.present >= demand.count; });
}

std::vector<SlotTable::Alike> SlotTable::ByArithmetic(const SlotDemand& demand) const {
  SlotDemand any = demand;
  any.mixed = false;
  any.arithmetic.clear();
  any.count = 2;  // of one slot the fingerprint does not matter
  const std::vector<Pool> pools = PoolsFor(any);
  const std::vector<Counts> counts = CountEach(any, pools);
  const std::vector<int> pool_of = PoolOfEachKind(any, pools);
  std::vector<Alike> all;
  for (size_t i = 0; i < pools.size(); ++i) {
    const Group& group = groups_[pools[i].begin];
    all.push_back({kDevices[group.device], group.arithmetic, counts[i], {}});
  }
  for (const Node& node : nodes_) {
    for (const Slot& slot : node.slots) {
      if (pool_of[slot.kind] < 0) continue;
      std::vector<std::string>& nodes = all[pool_of[slot.kind]].nodes;
      if (nodes.empty() || nodes.back() != node.name) nodes.push_back(node.name);
    }
  }
  std::erase_if(all, [](const Alike& alike) { return alike.counts.present == 0; });
  return all;
}

SlotTable::Node* SlotTable::FindNode(const std::string& name) {
  const auto node =
      std::lower_bound(nodes_.begin(), nodes_.end(), name,
                       [](const Node& a, const std::string& wanted) { return a.name < wanted; });
  return node == nodes_.end() || node->name != name ? nullptr : &*node;
}

const SlotTable::Slot* SlotTable::FindSlot(const std::string& name, int index) const {
  const Node* const node = FindNode(name);
  if (node == nullptr) return nullptr;
  const auto slot = std::find_if(node->slots.begin(), node->slots.end(),
                                 [index](const Slot& one) { return one.index == index; });
  return slot == node->slots.end() ? nullptr : &*slot;
}

bool SlotTable::IsFree(const std::string& node, int slot) const {
  const Slot* const found = FindSlot(node, slot);
  return found != nullptr && !found->taken;
}

bool SlotTable::Serves(const SlotDemand& demand, const Pool& pool, const std::string& node,
                       int slot) const {
  const Slot* const found = FindSlot(node, slot);
  if (found == nullptr) return false;
  const Kind& kind = kinds_[found->kind];
  return !kind.kept && kind.Serves(demand, pool);
}

bool SlotTable::IsLargeEnough(const SlotDemand& demand, const std::string& node, int slot) const {
  const Slot* const found = FindSlot(node, slot);
  return found != nullptr && kinds_[found->kind].bytes >= demand.bytes;
}

SlotTable::Pool SlotTable::PoolOf(const SlotDemand& demand,
                                  const std::vector<Placement::Rank>& ranks) const {
  for (const Placement::Rank& rank : ranks) {
    const Slot* const slot = FindSlot(rank.node, rank.slots.front());
    if (slot == nullptr) continue;
    const int group = kinds_[slot->kind].group;
    Pool pool{group, group + 1};
    const auto like = [&](int other) { return groups_[other].device == groups_[group].device; };
    while (demand.mixed && pool.begin > 0 && like(pool.begin - 1)) --pool.begin;
    const int groups = static_cast<int>(groups_.size());
    while (demand.mixed && pool.end < groups && like(pool.end)) ++pool.end;
    return pool;
  }
  return {};
}

bool SlotTable::MayShare(const SlotDemand& demand,
                         const std::vector<Placement::Rank>& ranks) const {
  const std::vector<Pool> pools = PoolsFor(demand);
  return std::any_of(pools.begin(), pools.end(), [&](const Pool& pool) {
    return std::all_of(ranks.begin(), ranks.end(), [&](const Placement::Rank& rank) {
      return std::all_of(rank.slots.begin(), rank.slots.end(), [&](int index) {
        const Slot* const slot = FindSlot(rank.node, index);
        if (slot == nullptr) return false;
        const int group = kinds_[slot->kind].group;
        return pool.begin <= group && group < pool.end;
      });
    });
  });
}

void SlotTable::SetTaken(const std::string& node_name, int index, bool taken) {
  Node* const node = FindNode(node_name);
  if (node == nullptr) return;
  for (Slot& slot : node->slots) {
    if (slot.index != index || slot.taken == taken) continue;
    slot.taken = taken;
    node->free += taken ? -1 : 1;
    kinds_[slot.kind].free += taken ? -1 : 1;
  }
}

void SlotTable::Take(const std::vector<Placement::Rank>& ranks) {
  for (const Placement::Rank& rank : ranks) {
    for (const int slot : rank.slots) SetTaken(rank.node, slot, true);
  }
}

void SlotTable::Keep(const SlotDemand& demand) {
  const std::vector<Pool> pools = PoolsFor(demand);
  const std::vector<Counts> counts = CountEach(demand, pools);
  const std::vector<int> pool_of = PoolOfEachKind(demand, pools);
  for (size_t i = 0; i < kinds_.size(); ++i) {
    // A pool in which there are too few can never serve the job: nothing is kept there.
    if (pool_of[i] >= 0 && counts[pool_of[i]].present >= demand.count) kinds_[i].kept = true;
  }
}

std::string SlotTable::DescribePresent() const {
  std::map<std::string, std::pair<int, int64_t>> kinds;
  for (const Kind& kind : kinds_) {
    if (kind.present == 0) continue;
    auto& [count, bytes] = kinds[kind.device];
    count += kind.present;
    bytes = std::max(bytes, kind.bytes);
  }
  if (kinds.empty()) return "no slot";
  return absl::StrJoin(kinds, ", ", [](std::string* out, const auto& kind) {
    const auto& [count, bytes] = kind.second;
    absl::StrAppend(out, count, " ", kind.first, count == 1 ? " slot of " : " slots of up to ",
                    DescribeBytes(bytes));
  });
}

}  // namespace trainyard
