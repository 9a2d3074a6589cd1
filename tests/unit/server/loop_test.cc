#include "server/scheduler/loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>

#include "absl/time/clock.h"
#include "storage/local_wakeups.h"

namespace trainyard {
namespace {

// Has nothing to plan; counts how often it is read.
class EmptyStore : public SchedulerStore {
 public:
  absl::StatusOr<LeaderRecord> ReadLeader() override { return LeaderRecord(); }
  absl::StatusOr<LeaderLease> Lead(const std::string&, absl::Duration,
                                   std::optional<int64_t>) override {
    return LeaderLease{.epoch = 1};
  }
  absl::Status StandDown(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<SchedulerSnapshot> ReadSnapshot() override { return SchedulerSnapshot(); }
  absl::StatusOr<SnapshotChanges> ReadChanges(const ChangePosition&, bool) override {
    ++readings;
    return SnapshotChanges{.now = absl::Now()};
  }
  absl::StatusOr<int> Apply(int64_t, const Decisions&) override { return 0; }

  std::atomic<int> readings = 0;
};

TEST(SchedulerLoop, WakeUpsThatFollowEachOtherShareATurn) {
  EmptyStore store;
  LocalWakeups wakeups;
  SchedulerLoop loop(store, wakeups, SystemClock(), {.holder = "one"});
  const absl::Duration begun = SystemClock().SinceBoot();
  const auto taken = [&] { return SystemClock().SinceBoot() - begun; };
  loop.Start();
  while (store.readings < 21 && taken() < absl::Seconds(15)) wakeups.Wake("queue");
  EXPECT_GE(taken(), absl::Milliseconds(190)) << "turns begin ten milliseconds apart";
  EXPECT_GE(store.readings, 21) << "a turn a second is what there is without wake-ups";
}

}  // namespace
}  // namespace trainyard
