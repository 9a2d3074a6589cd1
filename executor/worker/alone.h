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
  int threads = 1;               // of each rank
  bool resume = false;
  std::string metrics;  // path of a file for all metrics (metrics_file.h); "": none
  int ranks = 1;
  bool tcp = false;  // ranks exchange by TCP, though they could by shared memory
};

// Trains with no server around: progress for people on stdout. Returns the exit code. Catches stop
// signals (stop_signal.h); with several ranks it must be called before the first thread is started.
int RunAlone(const AloneOptions& options);

}  // namespace trainyard::worker
