#pragma once

// What this node offers: one slot per GPU, and as many CPU slots as were asked for.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/agent/nvml.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard {

struct SlotRequest {
  int cpu_slots = 0;
  int threads_per_slot = 0;  // 0: the cores of the machine, divided by all slots
};

// The machine as slots see it.
struct Machine {
  int cores = 1;
  int64_t memory_bytes = 0;  // of the machine, or of the cgroup when that is less
};

// `root` is prepended to /proc and /sys (tests).
absl::StatusOr<Machine> ReadMachine(const std::string& root = "");

// Bytes that processes which begin now may take, as the kernel estimates it (MemAvailable), or what
// the cgroup has left when that is less.
absl::StatusOr<int64_t> ReadFreeMemory(const std::string& root = "");

// Pure. GPUs first, then CPU slots; indices from 0. kInvalidArgument: nothing to offer.
absl::StatusOr<std::vector<v1::Slot>> MakeSlots(const SlotRequest& request, const Machine& machine,
                                                const std::vector<Gpu>& gpus);

// The --device of a worker on `slot`: "cpu" or "cuda:I".
std::string DeviceOf(const v1::Slot& slot);

}  // namespace trainyard
