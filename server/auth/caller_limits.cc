#include "server/auth/caller_limits.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr double kRounding = 1e-6;

std::string KeyOf(const Principal& caller) {
  return absl::StrCat(caller.project, "/", caller.name);
}

}  // namespace

absl::Duration CallerLimits::TakeSubmissions(const Principal& caller, int jobs) {
  if (options_.submissions_per_minute == 0 || jobs == 0) return absl::ZeroDuration();
  const double most = options_.submissions_per_minute;
  const absl::Duration now = clock_.SinceBoot();
  const auto left_at = [&](const Bucket& bucket) {
    return std::min(most, bucket.left + most * absl::ToDoubleMinutes(now - bucket.at));
  };
  absl::MutexLock lock(&mu_);
  if (buckets_.size() >= sweep_at_) {
    std::erase_if(buckets_, [&](const auto& one) { return left_at(one.second) >= most; });
    sweep_at_ = std::max(kManyCallers, 2 * buckets_.size());
  }
  Bucket& bucket = buckets_.try_emplace(KeyOf(caller), Bucket{most, now}).first->second;
  const double left = left_at(bucket);
  if (left < 1 - kRounding) {
    return absl::Milliseconds(std::ceil((1 - left) / most * 60'000 - kRounding));
  }
  bucket = {left - jobs, now};
  return absl::ZeroDuration();
}

absl::StatusOr<std::shared_ptr<void>> CallerLimits::TakeStream(const Principal& caller) {
  if (options_.most_streams == 0) return std::shared_ptr<void>();
  const std::string key = KeyOf(caller);
  absl::MutexLock lock(&mu_);
  int& open = streams_[key];
  if (open >= options_.most_streams) {
    return absl::ResourceExhaustedError(absl::StrCat(caller.name, " has ", open,
                                                     " streams open on this server, and may have ",
                                                     options_.most_streams, "; end one first"));
  }
  ++open;
  // NOLINTNEXTLINE: the deleter is what is wanted
  return std::shared_ptr<void>(this, [this, key](void*) {
    absl::MutexLock lock(&mu_);
    const auto counted = streams_.find(key);
    if (--counted->second == 0) streams_.erase(counted);
  });
}

}  // namespace trainyard
