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
  absl::Duration rest;
  {
    absl::MutexLock lock(&mu_);
    for (; !waiting_.empty() && renewals.size() < kMostRenewals; waiting_.pop_front()) {
      renewals.push_back(std::move(waiting_.front().renewal));
      dones.push_back(std::move(waiting_.front().done));
    }
    if (renewals.empty()) return;
    more = !waiting_.empty();
    rest = std::min(rest_per_node_ * static_cast<int64_t>(nodes_), kLongestRest);
  }
  if (more) {
    Poke();
  } else if (rest > absl::ZeroDuration()) {
    Rest(rest);
  }
  const std::vector<absl::Status> answers = store_.RenewLeases(renewals);
  for (size_t i = 0; i < dones.size(); ++i) dones[i](answers[i]);
}

void LeaseRenewer::SetNodes(size_t nodes) {
  absl::MutexLock lock(&mu_);
  nodes_ = nodes;
}

}  // namespace trainyard
