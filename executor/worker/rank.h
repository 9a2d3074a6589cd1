#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device.h"

namespace trainyard::worker {

struct RankOptions {
  std::string run_directory;
  std::string device = "cpu";
  int threads = 1;
  // Where an attempt before left its state in this node's memory ("": nowhere), and how much of
  // that memory there is for a state that comes from another node.
  std::string kept_state;
  int64_t kept_state_room = 0;
};

// Runs one rank as its assignment says and returns the exit code; every failure is written as an
// event first. `ready` is a device that was opened for these options already, or null.
int RunRank(const RankOptions& options, std::unique_ptr<kernels::Device> ready);

}  // namespace trainyard::worker
