#pragma once

// The time that passes in a yard, and the clocks of its machines, which disagree about it.

#include <cstdint>

#include "absl/time/time.h"
#include "storage/base/clock.h"

namespace trainyard {

// The time since the yard began. Invariants are judged by it; nothing that is tested sees it.
struct SimTime {
  absl::Duration now;
};

// The clock of one machine. It runs faster or slower than time passes; its wall clock is off by
// some seconds and may be set, its monotonic clock never jumps. For one thread.
class SimClock : public Clock {
 public:
  static constexpr int kMostDrift = 20;  // parts per thousand
  static constexpr absl::Duration kMostOffset = absl::Seconds(15);

  // `drift` in parts per thousand: how much faster than time it runs. `up`: how long before the
  // yard began the machine was started.
  SimClock(const SimTime& time, int drift, absl::Duration offset, absl::Duration up)
      : time_(time), drift_(drift), offset_(offset), up_(up) {}

  absl::Time Now() override { return absl::FromUnixSeconds(1700000000) + offset_ + Ticked(); }
  absl::Duration SinceBoot() override { return up_ + Ticked(); }

  // Sets the wall clock. The store's jumps when a stand-by, which has a clock of its own, takes
  // over.
  void SetOffset(absl::Duration offset) { offset_ = offset; }

 private:
  absl::Duration Ticked() const {
    const int64_t ns = absl::ToInt64Nanoseconds(time_.now);
    return absl::Nanoseconds(ns + ns / 1000 * drift_);
  }

  const SimTime& time_;
  const int drift_;
  absl::Duration offset_;
  const absl::Duration up_;
};

}  // namespace trainyard
