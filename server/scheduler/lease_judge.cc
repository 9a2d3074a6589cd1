#include "server/scheduler/lease_judge.h"

#include <algorithm>
#include <utility>

namespace trainyard {

void LeaseJudge::Judge(absl::Duration now, absl::Time store_now,
                       const std::vector<NodeRecord*>& nodes) {
  const absl::Duration gap = now - std::exchange(last_answer_, now);
  const bool after_gap = gap > kMostGap;
  ++round_;
  for (NodeRecord* node : nodes) {
    const auto [known, added] = seen_.try_emplace(node->name);
    Seen& seen = known->second;
    if (added || seen.beat != node->beat) {
      seen.beat = node->beat;
      seen.at = now;
    } else if (after_gap) {
      seen.at = std::max(seen.at + gap, now - lease_ + kLeastAfterGap);
    }
    seen.round = round_;
    node->lease_end = store_now + (seen.at + lease_ - now);
  }
  if (seen_.size() == nodes.size()) return;
  absl::erase_if(seen_, [this](const auto& entry) { return entry.second.round != round_; });
}

}  // namespace trainyard
