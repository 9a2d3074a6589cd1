#include "server/scheduler/slots.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

SlotDemand WholeDemandOf(const JobRecord& job) {
  return {.count = std::max(1, job.min_slots), .device = job.device, .bytes = job.bytes_per_slot};
}

std::string DescribeDemand(const SlotDemand& demand) {
  std::string text =
      absl::StrCat(demand.count, demand.device.empty() ? "" : " ", demand.device,
                   demand.count == 1 ? " slot of " : " slots of ", DescribeBytes(demand.bytes));
  if (!demand.avoid.empty()) {
    absl::StrAppend(&text, ", not on nodes/", demand.avoid, ", which failed it last");
  }
  return text;
}

void HeldSlots::Add(const AttemptRecord& attempt) {
  for (const RankRecord& rank : attempt.ranks) {
    if (IsOver(rank.state)) continue;
    by_node_[rank.node].insert(rank.slots.begin(), rank.slots.end());
  }
}

void HeldSlots::Remove(const AttemptRecord& attempt) {
  for (const RankRecord& rank : attempt.ranks) {
    if (IsOver(rank.state)) continue;
    const auto node = by_node_.find(rank.node);
    if (node == by_node_.end()) continue;
    for (const int slot : rank.slots) {
      const auto held = node->second.find(slot);
      if (held != node->second.end()) node->second.erase(held);
    }
    if (node->second.empty()) by_node_.erase(node);
  }
}

const std::multiset<int>& HeldSlots::On(const std::string& node) const {
  static const auto& none = *new std::multiset<int>();
  const auto found = by_node_.find(node);
  return found == by_node_.end() ? none : found->second;
}

int SlotTable::KindOf(const SlotRecord& slot) {
  // Most slots are like the one before.
  if (last_kind_ < kinds_.size() && kinds_[last_kind_].bytes == slot.memory_bytes &&
      kinds_[last_kind_].device == slot.device) {
    return static_cast<int>(last_kind_);
  }
  const auto [known, added] =
      kind_of_.try_emplace({slot.memory_bytes, slot.device}, static_cast<int>(kinds_.size()));
  if (added) kinds_.push_back({.device = slot.device, .bytes = slot.memory_bytes});
  last_kind_ = known->second;
  return known->second;
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
    } else if (record->draining) {
      ++draining_;
    } else if (!CordonReason(*record).empty()) {
      ++cordoned_;
    } else {
      AddNode(*record, held.On(record->name));
    }
  }
  std::sort(nodes_.begin(), nodes_.end(),
            [](const Node& a, const Node& b) { return a.name < b.name; });
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
      kinds_.push_back(
          {.device = from.device, .bytes = from.bytes, .kept = from.kept, .of_node = name});
    }
    slot.kind = to->second;
    ++kinds_[slot.kind].present;
    if (!slot.taken) ++kinds_[slot.kind].free;
  }
}

SlotDemand SlotTable::DemandOf(const JobRecord& job) {
  SlotDemand demand = WholeDemandOf(job);
  if (job.avoid_node.empty()) return demand;
  SetApart(job.avoid_node);
  demand.avoid = job.avoid_node;
  if (!CouldHold(demand)) demand.avoid.clear();
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

SlotTable::Counts SlotTable::CountOn(const SlotDemand& demand, absl::string_view device) const {
  Counts counts;
  if (!Allows(demand, device)) return counts;
  for (const Kind& kind : kinds_) {
    if (!kind.Serves(demand, device)) continue;
    counts.present += kind.present;
    counts.free += kind.free;
    if (kind.kept) counts.kept += kind.free;
  }
  return counts;
}

SlotTable::Counts SlotTable::Count(const SlotDemand& demand) const {
  Counts best;
  for (absl::string_view device : kDevices) {
    const Counts counts = CountOn(demand, device);
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
  return std::any_of(std::begin(kDevices), std::end(kDevices), [&](absl::string_view device) {
    return CountOn(demand, device).present >= demand.count;
  });
}

std::optional<std::vector<Placement::Rank>> SlotTable::Find(const SlotDemand& demand) const {
  for (absl::string_view device : kDevices) {
    auto ranks = FindOn(demand, device);
    if (ranks.has_value()) return ranks;
  }
  return std::nullopt;
}

// A gang of one goes to the node that then has the fewest free slots left, among equals to the
// first by name.
std::optional<Placement::Rank> SlotTable::FindOne(const std::vector<bool>& serves) const {
  std::optional<Placement::Rank> best;
  int least = 0;
  for (const Node& node : nodes_) {
    if (node.free == 0) continue;
    int free = 0;
    int first = 0;
    for (const Slot& slot : node.slots) {
      if (slot.taken || !serves[slot.kind]) continue;
      if (free++ == 0) first = slot.index;
    }
    if (free == 0 || (best.has_value() && free >= least)) continue;
    least = free;
    best = Placement::Rank{.node = node.name, .slots = {first}};
    if (least == 1) break;
  }
  return best;
}

std::optional<std::vector<Placement::Rank>> SlotTable::FindOn(const SlotDemand& demand,
                                                              absl::string_view device) const {
  const Counts counts = CountOn(demand, device);
  if (counts.free - counts.kept < demand.count) return std::nullopt;
  std::vector<bool> serves;
  for (const Kind& kind : kinds_) serves.push_back(!kind.kept && kind.Serves(demand, device));
  if (demand.count == 1) {
    std::optional<Placement::Rank> one = FindOne(serves);
    if (!one.has_value()) return std::nullopt;
    return std::vector<Placement::Rank>{*std::move(one)};
  }
  std::vector<Candidate> candidates;
  for (const Node& node : nodes_) {
    if (node.free == 0) continue;
    Candidate candidate{.node = &node};
    for (const Slot& slot : node.slots) {
      if (!slot.taken && serves[slot.kind]) candidate.slots.push_back(slot.index);
    }
    if (!candidate.slots.empty()) candidates.push_back(std::move(candidate));
  }
  return LayOut(std::move(candidates), demand.count);
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

SlotTable::Node* SlotTable::FindNode(const std::string& name) {
  const auto node =
      std::lower_bound(nodes_.begin(), nodes_.end(), name,
                       [](const Node& a, const std::string& wanted) { return a.name < wanted; });
  return node == nodes_.end() || node->name != name ? nullptr : &*node;
}

absl::Span<const absl::string_view> SlotTable::Devices() { return kDevices; }

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

bool SlotTable::Serves(const SlotDemand& demand, absl::string_view device, const std::string& node,
                       int slot) const {
  const Slot* const found = FindSlot(node, slot);
  if (found == nullptr || !Allows(demand, device)) return false;
  const Kind& kind = kinds_[found->kind];
  return !kind.kept && kind.Serves(demand, device);
}

absl::string_view SlotTable::DeviceOf(const std::vector<Placement::Rank>& ranks) const {
  for (const Placement::Rank& rank : ranks) {
    const Slot* const slot = FindSlot(rank.node, rank.slots.front());
    if (slot != nullptr) return kinds_[slot->kind].device;
  }
  return "";
}

std::vector<Placement::Rank> SlotTable::FindMore(const SlotDemand& demand,
                                                 const std::vector<Placement::Rank>& ranks,
                                                 int most) const {
  std::set<std::string> on;
  for (const Placement::Rank& rank : ranks) on.insert(rank.node);
  const absl::string_view device = DeviceOf(ranks);
  const Counts counts = CountOn(demand, device);
  if (device.empty() || most < 1 || counts.free <= counts.kept) return {};
  std::vector<Candidate> candidates;
  for (const Node& node : nodes_) {
    if (node.free == 0) continue;
    Candidate candidate{.node = &node};
    for (const Slot& slot : node.slots) {
      const Kind& kind = kinds_[slot.kind];
      if (slot.taken || kind.kept || !kind.Serves(demand, device)) continue;
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
  for (absl::string_view device : kDevices) {
    // A kind of device of which there are too few can never serve the job: nothing is kept there.
    if (CountOn(demand, device).present < demand.count) continue;
    for (Kind& kind : kinds_) {
      if (kind.Serves(demand, device)) kind.kept = true;
    }
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
