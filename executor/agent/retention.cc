#include "executor/agent/retention.h"

#include <algorithm>

namespace trainyard {

std::vector<std::string> Expired(std::vector<KeptRank> kept, const RetentionLimits& limits,
                                 absl::Time now) {
  std::sort(kept.begin(), kept.end(),
            [](const KeptRank& a, const KeptRank& b) { return a.retired > b.retired; });
  std::vector<std::string> expired;
  int count = 0;
  int64_t bytes = 0;
  for (const KeptRank& rank : kept) {
    ++count;
    bytes += rank.bytes;
    if (count > limits.count || bytes > limits.bytes || now - rank.retired > limits.age) {
      expired.push_back(rank.name);
    }
  }
  return expired;
}

}  // namespace trainyard
