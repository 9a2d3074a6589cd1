#include "server/scheduler/held_slots.h"

namespace trainyard {

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

}  // namespace trainyard
