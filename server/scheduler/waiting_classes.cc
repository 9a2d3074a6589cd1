#include "server/scheduler/waiting_classes.h"

#include <utility>

namespace trainyard {

// Most passes find what the pass before found: nothing is copied for what stays.
void ForetoldReasons::Set(const WaitingClasses& waiting, std::shared_ptr<const SlotLimits> limits) {
  absl::MutexLock lock(&mu_);
  limits_ = std::move(limits);
  ++pass_;
  for (const WaitingClass& one : waiting) {
    Foretold& foretold = reasons_[*one.demand];
    foretold.pass = pass_;
    if (foretold.reason != one.reason) foretold.reason = one.reason;
  }
  if (reasons_.size() == waiting.size()) return;
  std::erase_if(reasons_, [this](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return entry.second.pass != pass_;
  });
}

std::optional<Reason> ForetoldReasons::Find(const JobRecord& job) const {
  absl::MutexLock lock(&mu_);
  const auto found = reasons_.find(ClassOf(job, *limits_));
  if (found == reasons_.end()) return std::nullopt;
  return found->second.reason;
}

}  // namespace trainyard
