#include "server/scheduler/leader_judge.h"

#include <algorithm>
#include <utility>

namespace trainyard {

absl::Duration LeaderJudge::Left(absl::Duration now, const LeaderRecord& leader) {
  const absl::Duration gap = now - std::exchange(last_answer_, now);
  if (leader.holder.empty()) return absl::ZeroDuration();
  if (beat_ != leader.beat || gap > kMostGap) {
    beat_ = leader.beat;
    since_ = now;
  }
  return std::max(absl::ZeroDuration(), since_ + lease_ - now);
}

}  // namespace trainyard
