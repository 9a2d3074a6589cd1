#pragma once

// The pools of a yard: which engine makes their nodes, how many, and what one brings. From a file
// that all servers of a yard have alike.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/records/node.h"

namespace trainyard {

struct SlurmPool {
  std::string script;                // path of the batch script that starts an agent
  std::vector<std::string> options;  // of sbatch: "--partition=gpu"
  // Before the end of an allocation's time its script is sent SIGUSR1 so early.
  absl::Duration leave = absl::Seconds(60);
};

struct Pool {
  std::string name;
  int min = 0;  // nodes that are kept, whoever waits
  int max = 0;
  absl::Duration idle_ttl = absl::Minutes(5);       // of a node that nobody needs
  absl::Duration boot_timeout = absl::Minutes(10);  // from when the engine starts it
  // What one node brings.
  std::string device;  // "CPU" or "CUDA"
  int slots = 1;
  int64_t bytes = 0;  // of each slot
  SlurmPool slurm;
};

// kInvalidArgument names file, line, what was found and what was expected.
absl::StatusOr<std::vector<Pool>> ReadPools(const std::string& path);
absl::StatusOr<std::vector<Pool>> ParsePools(const std::string& path, const std::string& text);

// Whether a node of this name was asked of one of the pools.
bool IsOfPool(const std::vector<Pool>& pools, const std::string& node);

// All slots of each pool, as far as they are known before they are there, as those of one node: for
// whoever asks what could ever fit.
std::vector<NodeRecord> PossibleNodes(const std::vector<Pool>& pools);

}  // namespace trainyard
