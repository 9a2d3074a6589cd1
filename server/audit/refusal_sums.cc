#include "server/audit/refusal_sums.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace trainyard {
namespace {

constexpr absl::Duration kLongestWindow = absl::Hours(1);

}  // namespace

std::optional<AuditEntry> RefusalSums::Take(AuditEntry refusal, absl::Duration now) {
  Key key(refusal.source, refusal.principal, refusal.method, refusal.outcome);
  if (!sums_.contains(key) && sums_.size() >= most_sources_) {
    refusal.source = "others";
    key = Key(refusal.source, refusal.principal, refusal.method, refusal.outcome);
  }
  const auto [found, is_new] =
      sums_.try_emplace(std::move(key), Sum{.from = now, .window = window_});
  Sum& sum = found->second;
  if (is_new) {
    sum.first.count = 0;
    return refusal;
  }
  if (sum.first.count == 0) {
    const int64_t count = refusal.count;
    sum.first = std::move(refusal);
    sum.first.count = count;
  } else {
    sum.first.count += refusal.count;
  }
  return std::nullopt;
}

std::vector<AuditEntry> RefusalSums::Due(absl::Duration now, bool all) {
  std::vector<AuditEntry> due;
  for (auto it = sums_.begin(); it != sums_.end();) {
    Sum& sum = it->second;
    if (!all && now - sum.from < sum.window) {
      ++it;
    } else if (sum.first.count > 0) {
      due.push_back(std::exchange(sum.first, AuditEntry{.count = 0}));
      sum.from = now;  // it goes on, perhaps
      sum.window = std::min(sum.window * 2, kLongestWindow);
      it = all ? sums_.erase(it) : std::next(it);
    } else {
      it = sums_.erase(it);
    }
  }
  return due;
}

}  // namespace trainyard
