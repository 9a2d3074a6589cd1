#pragma once

// How long the directories of finished ranks are kept for their logs: a pure function.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trainyard {

struct KeptRank {
  std::string name;
  absl::Time retired;  // when nothing was left to do for it
  int64_t bytes = 0;
};

struct RetentionLimits {
  int count = 100;
  absl::Duration age = absl::Hours(7 * 24);
  int64_t bytes = int64_t{512} << 20;
};

// Names to delete: the oldest ones, until the rest keeps all limits.
std::vector<std::string> Expired(std::vector<KeptRank> kept, const RetentionLimits& limits,
                                 absl::Time now);

}  // namespace trainyard
