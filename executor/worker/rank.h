#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"

namespace trainyard::worker {

struct RankOptions {
  std::string run_directory;
  std::string device = "cpu";
  int threads = 1;
};

// Runs one rank as its assignment says and returns the exit code; every failure is written as an
// event first. `ready` is a device that was opened for these options already, or null.
int RunRank(const RankOptions& options, std::unique_ptr<kernels::Device> ready);

}  // namespace trainyard::worker
