#include "executor/agent/lease.h"

#include <algorithm>

namespace trainyard {
namespace {

constexpr size_t kMostUnanswered = 1000;

}  // namespace

void Lease::Inherit(absl::Duration until, absl::Duration fence_at) {
  const absl::Duration fence = std::max(this->fence_at(), fence_at);
  until_ = std::max(until_, until);
  holds_until_ = std::max(holds_until_, until);
  orphan_limit_ = std::max(absl::ZeroDuration(), fence - holds_until_);
}

void Lease::Begin(const v1::Welcome& terms, absl::Duration register_sent) {
  if (terms.heartbeat_ms() > 0) heartbeat_ = absl::Milliseconds(terms.heartbeat_ms());
  if (terms.lease_ms() > 0) lease_ = absl::Milliseconds(terms.lease_ms());
  if (terms.self_fence_ms() > 0) self_fence_ = absl::Milliseconds(terms.self_fence_ms());
  self_fence_ = std::min(self_fence_, lease_);
  orphan_limit_ = absl::Milliseconds(std::max<int64_t>(0, terms.orphan_limit_ms()));
  sent_.clear();
  // Set, not extended: no lease that was given before ends later, unless somebody wrote nonsense
  // into a lease file.
  until_ = register_sent + lease_;
  holds_until_ = register_sent + self_fence_;
}

int64_t Lease::Beat(absl::Duration now) {
  const int64_t id = next_id_++;
  sent_[id] = now;
  if (sent_.size() > kMostUnanswered) sent_.erase(sent_.begin());
  return id;
}

void Lease::Acknowledge(int64_t id) {
  const auto it = sent_.find(id);
  if (it == sent_.end()) return;
  RenewFrom(it->second);
  sent_.erase(sent_.begin(), std::next(it));
}

void Lease::RenewFrom(absl::Duration sent) {
  until_ = std::max(until_, sent + lease_);
  holds_until_ = std::max(holds_until_, sent + self_fence_);
}

}  // namespace trainyard
