#include "executor/agent/gpu_monitor.h"

#include <spdlog/spdlog.h>

#include <deque>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace trainyard {
namespace {

constexpr absl::Duration kStale = absl::Seconds(10);
constexpr absl::Duration kLongestGoodbye = absl::Seconds(2);
constexpr size_t kMostHeard = 64;  // errors that are remembered

}  // namespace

struct GpuMonitor::Shared {
  explicit Shared(Clock& of_machine) : clock(of_machine) {}

  struct Heard {
    Xid xid;
    absl::Duration at;
  };

  Clock& clock;
  std::shared_ptr<Nvml> nvml;
  absl::Duration interval;
  mutable absl::Mutex mu;
  bool stop ABSL_GUARDED_BY(mu) = false;
  bool ended ABSL_GUARDED_BY(mu) = false;
  std::vector<GpuUsage> usage ABSL_GUARDED_BY(mu);
  std::map<int, int> xids ABSL_GUARDED_BY(mu);  // newest by GPU
  std::deque<Heard> heard ABSL_GUARDED_BY(mu);
  absl::Time seen ABSL_GUARDED_BY(mu) = absl::InfinitePast();
};

GpuMonitor::GpuMonitor(std::shared_ptr<Nvml> nvml, Clock& clock, absl::Duration interval)
    : shared_(std::make_shared<Shared>(clock)) {
  if (nvml == nullptr) return;
  shared_->nvml = std::move(nvml);
  shared_->interval = interval;
  thread_ = std::thread([shared = shared_] { Watch(shared); });
}

GpuMonitor::~GpuMonitor() {
  if (!thread_.joinable()) return;
  bool ended = false;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->stop = true;
    ended = shared_->mu.AwaitWithTimeout(absl::Condition(&shared_->ended), kLongestGoodbye);
  }
  // A call that hangs in the driver cannot be interrupted, and no agent waits for it to leave: the
  // thread goes on with what it shares, which it owns too, until it returns or the process ends.
  ended ? thread_.join() : thread_.detach();
}

std::map<int, v1::SlotUsage> GpuMonitor::Usage() const {
  std::map<int, v1::SlotUsage> all;
  absl::MutexLock lock(&shared_->mu);
  if (absl::Now() - shared_->seen > kStale) return all;
  for (size_t i = 0; i < shared_->usage.size(); ++i) {
    const GpuUsage& usage = shared_->usage[i];
    v1::SlotUsage& slot = all[static_cast<int>(i)];
    slot.set_utilization(usage.utilization);
    slot.set_memory_used_bytes(usage.memory_used_bytes);
    slot.set_temperature_celsius(usage.temperature_celsius);
    slot.set_power_watts(usage.power_watts);
    const auto xid = shared_->xids.find(static_cast<int>(i));
    if (xid != shared_->xids.end()) slot.set_last_xid(xid->second);
  }
  return all;
}

std::vector<Xid> GpuMonitor::XidsSince(absl::Duration since, const std::set<int>& gpus,
                                       absl::Duration patience) const {
  std::vector<Xid> found;
  if (!thread_.joinable() || gpus.empty()) return found;
  const auto find = [&] {
    shared_->mu.AssertReaderHeld();
    found.clear();  // the condition may be evaluated more than once
    for (const Shared::Heard& one : shared_->heard) {
      if (one.at >= since && gpus.contains(one.xid.gpu)) found.push_back(one.xid);
    }
    return !found.empty();
  };
  absl::MutexLock lock(&shared_->mu);
  shared_->mu.AwaitWithTimeout(absl::Condition(&find), patience);
  return found;
}

// The wait for an error is the pause between two readings. After an error there is a pause all the
// same, so that a GPU that reports errors without end is not read more often.
void GpuMonitor::Watch(const std::shared_ptr<Shared>& shared) {
  for (;;) {
    const std::vector<GpuUsage> usage = shared->nvml->Usage();
    const absl::StatusOr<std::optional<Xid>> xid = shared->nvml->NextXid(shared->interval);
    const bool heard = xid.ok() && xid->has_value();
    if (heard) spdlog::error("the driver reports {}", Describe(**xid));
    absl::MutexLock lock(&shared->mu);
    shared->usage = usage;
    shared->seen = absl::Now();
    if (heard) {
      shared->xids[(*xid)->gpu] = (*xid)->code;
      shared->heard.push_back({.xid = **xid, .at = shared->clock.SinceBoot()});
      if (shared->heard.size() > kMostHeard) shared->heard.pop_front();
    }
    if (heard || !xid.ok()) {
      shared->mu.AwaitWithTimeout(absl::Condition(&shared->stop), shared->interval);
    }
    if (shared->stop) break;
  }
  absl::MutexLock lock(&shared->mu);
  shared->ended = true;
}

}  // namespace trainyard
