#pragma once

// What the GPUs of the node do, looked at from a thread of its own: a driver that hangs must not
// keep the agent from renewing its lease.

#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "executor/agent/nvml.h"
#include "storage/base/clock.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard {

class GpuMonitor {
 public:
  // Reads the GPUs every `interval`. `nvml` is null when there are none. `clock` must outlive it.
  GpuMonitor(std::shared_ptr<Nvml> nvml, Clock& clock,
             absl::Duration interval = absl::Milliseconds(500));
  // Detaches the thread if a call into the driver keeps it for more than two seconds.
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // By index of the GPU; empty while the driver has not answered for ten seconds.
  std::map<int, v1::SlotUsage> Usage() const;

  // The newest errors of `gpus` that were heard since `since` (Clock::SinceBoot), the oldest first.
  // When there is none yet, waits for one at most `patience`: the driver tells of an error and ends
  // a process at about the same time.
  std::vector<Xid> XidsSince(absl::Duration since, const std::set<int>& gpus,
                             absl::Duration patience) const;

 private:
  struct Shared;
  static void Watch(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace trainyard
