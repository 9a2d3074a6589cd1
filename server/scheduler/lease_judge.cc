#include "server/scheduler/lease_judge.h"

#include <algorithm>
#include <utility>

namespace trainyard {

void LeaseJudge::Judge(absl::Duration now, absl::Time store_now,
                       const std::vector<NodeRecord*>& nodes) {
  const absl::Duration gap = now - std::exchange(last_answer_, now);
  const bool after_gap = gap > kMostGap;
  std::map<std::string, Seen> seen;
  for (NodeRecord* node : nodes) {
    Seen current{.beat = node->beat, .at = now};
    const auto before = seen_.find(node->name);
    if (before != seen_.end() && before->second.beat == node->beat) {
      current.at = before->second.at;
      if (after_gap) current.at = std::max(current.at + gap, now - lease_ + kLeastAfterGap);
    }
    node->lease_end = store_now + (current.at + lease_ - now);
    seen.emplace(node->name, current);
  }
  seen_ = std::move(seen);
}

}  // namespace trainyard
