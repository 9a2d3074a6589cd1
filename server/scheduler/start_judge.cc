#include "server/scheduler/start_judge.h"

#include <algorithm>

namespace trainyard {

void StartJudge::Count(absl::Duration now) {
  const absl::Duration since = std::max(now - last_answer_, absl::ZeroDuration());
  if (since <= kMostGap) counted_ += since;
  last_answer_ = now;
}

void StartJudge::Heard(absl::Duration now) { Count(now); }

void StartJudge::Judge(absl::Duration now, absl::Time store_now,
                       const std::vector<AttemptRecord*>& starting) {
  Count(now);
  std::map<std::pair<std::string, int64_t>, absl::Duration> seen;
  for (AttemptRecord* attempt : starting) {
    std::pair<std::string, int64_t> key(attempt->job_uid, attempt->attempt);
    const auto before = seen_.find(key);
    const absl::Duration at = before == seen_.end() ? counted_ : before->second;
    attempt->start_by = store_now + limit_ - (counted_ - at);
    seen.emplace(std::move(key), at);
  }
  seen_ = std::move(seen);
}

}  // namespace trainyard
