#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device.h"
#include "storage/base/file.h"

namespace trainyard::worker {

struct RankOptions {
  std::string run_directory;
  std::string device = "cpu";
  int threads = 1;
  // How much of this node's memory there is for a state that comes from another node.
  int64_t kept_state_room = 0;
};

// Runs one rank as its assignment says and returns the exit code; every failure is written as an
// event first. `ready` is a device that was opened for these options already, or null. `kept_state`
// is what an attempt before left in this node's memory, or an empty file for it, which ranks of
// this node share; or not valid.
int RunRank(const RankOptions& options, std::unique_ptr<kernels::Device> ready,
            FileDescriptor kept_state = {});

}  // namespace trainyard::worker
