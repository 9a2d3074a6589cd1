#include "server/fleet/lease_renewer.h"

#include <algorithm>
#include <utility>

namespace trainyard {
namespace {

constexpr size_t kMostRenewals = 1024;

}  // namespace

void LeaseRenewer::Renew(LeaseRenewal renewal, Done done) {
  {
    absl::MutexLock lock(&mu_);
    waiting_.push_back({std::move(renewal), std::move(done)});
  }
  Poke();
}

void LeaseRenewer::Work() {
  std::vector<LeaseRenewal> renewals;
  std::vector<Done> dones;
  bool more = false;
  {
    absl::MutexLock lock(&mu_);
    if (resting_) return;
    for (; !waiting_.empty() && renewals.size() < kMostRenewals; waiting_.pop_front()) {
      renewals.push_back(std::move(waiting_.front().renewal));
      dones.push_back(std::move(waiting_.front().done));
    }
    if (renewals.empty()) return;
    more = !waiting_.empty();
    const absl::Duration rest =
        std::min(rest_per_node_ * static_cast<int64_t>(nodes_), kLongestRest);
    resting_ = !more && rest > absl::ZeroDuration();
    if (resting_) EndRestAfter(rest);
  }
  if (more) Poke();
  const std::vector<absl::Status> answers = store_.RenewLeases(renewals);
  for (size_t i = 0; i < dones.size(); ++i) dones[i](answers[i]);
}

void LeaseRenewer::SetNodes(size_t nodes) {
  absl::MutexLock lock(&mu_);
  nodes_ = nodes;
}

void LeaseRenewer::EndRestAfter(absl::Duration rest) {
  pool().PostAfter(rest, [weak = weak_from_this()] {
    const auto self = std::static_pointer_cast<LeaseRenewer>(weak.lock());
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mu_);
      self->resting_ = false;
    }
    self->Poke();
  });
}

}  // namespace trainyard
