#include "storage/base/clock.h"

#include <time.h>

namespace trainyard {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  absl::Duration SinceBoot() override {
    timespec ts{};
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return absl::DurationFromTimespec(ts);
  }
};

}  // namespace

Clock& SystemClock() {
  static RealClock* clock = new RealClock();
  return *clock;
}

}  // namespace trainyard
