#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trainyard::worker {

struct AloneOptions {
  std::string spec;              // path of a job file
  std::vector<std::string> set;  // "field=value"
  std::string out;               // checkpoints go to {out}/checkpoints
  std::string device;            // "": what the spec asks for, else cpu
  int threads = 1;
  bool resume = false;
};

// Trains with no server around: progress for people on stdout. Returns the exit code.
int RunAlone(const AloneOptions& options);

}  // namespace trainyard::worker
