#pragma once

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace trainyard {

// Where time comes from. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Wall clock; may jump.
  virtual absl::Time Now() = 0;

  // Time since boot, suspended time included (CLOCK_BOOTTIME); never goes back. Leases use this.
  virtual absl::Duration SinceBoot() = 0;
};

// The machine's clock; lives for ever.
Clock& SystemClock();

// Stands still until it is told to move.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}
  absl::Time Now() override {
    absl::MutexLock lock(&mu_);
    return now_;
  }
  absl::Duration SinceBoot() override {
    absl::MutexLock lock(&mu_);
    return since_boot_;
  }
  void Advance(absl::Duration d) {
    absl::MutexLock lock(&mu_);
    now_ += d;
    since_boot_ += d;
  }

 private:
  absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
  absl::Duration since_boot_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
};

}  // namespace trainyard
