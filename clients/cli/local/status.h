#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "clients/cli/local/yard.h"

namespace trainyard::cli {

struct PartStatus {
  std::string name;
  bool alive = false;
  bool healthy = false;
  pid_t pid = 0;
  int restarts = 0;
  std::string detail;  // one phrase: what it answers, or why not
};

// Supervisor, PostgreSQL, server and agent of a yard, each asked for its health.
std::vector<PartStatus> StatusOfYard(const Yard& yard, const YardConfig& config);

}  // namespace trainyard::cli
