#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "clients/cli/session.h"

namespace trainyard::cli {

// What `trainyard metrics JOB --ranks` is asked for.
struct RankMetricsOptions {
  std::string job;
  int64_t from = 0;
  int64_t to = 0;  // 0: to the newest step
  bool csv = false;
  bool follow = false;
};

// Shows how the ranks of a gang compare; returns the exit code.
absl::StatusOr<int> ShowMetricsOfRanks(Session& session, const RankMetricsOptions& options);

}  // namespace trainyard::cli
