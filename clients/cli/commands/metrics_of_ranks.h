#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "clients/cli/session.h"

namespace trainyard::cli {

// What `trainyard metrics JOB` is asked for.
struct MetricsOptions {
  std::string job;
  std::string split;
  std::string metric = "loss";
  int64_t from = 0;
  int64_t to = 0;  // 0: to the newest step
  int last = 20;
  bool all = false;
  bool superseded = false;
  bool csv = false;
  bool plot = false;
  bool follow = false;
  bool ranks = false;
};

// With --ranks: shows how the ranks of a gang compare; returns the exit code.
absl::StatusOr<int> ShowMetricsOfRanks(Session& session, const MetricsOptions& options);

}  // namespace trainyard::cli
