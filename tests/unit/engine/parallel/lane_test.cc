#include "executor/engine/parallel/lane.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace trainyard::engine {
namespace {

TEST(Lane, ATaskIsWaitedForWhileLaterOnesAreOnTheirWay) {
  absl::Notification go_on;
  int done = 0;
  Lane lane;
  EXPECT_TRUE(lane.Ended(0));
  EXPECT_FALSE(lane.Ended(1)) << "nothing was started";
  const int64_t first = lane.Start([&] { return ++done, absl::OkStatus(); });
  const int64_t second = lane.Start([&] {
    go_on.WaitForNotification();
    return ++done, absl::OkStatus();
  });
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
  lane.WaitFor(first);
  EXPECT_EQ(done, 1);
  EXPECT_FALSE(lane.Ended(second));
  go_on.Notify();
  EXPECT_TRUE(lane.Wait().ok());
  EXPECT_TRUE(lane.Ended(second));
  EXPECT_EQ(done, 2);
}

TEST(Lane, NobodyWaitsForWhatIsNotRunAfterAFailure) {
  bool ran = false;
  Lane lane;
  lane.Start([] { return absl::UnavailableError("rank 1 left"); });
  const int64_t dropped = lane.Start([&] { return ran = true, absl::OkStatus(); });
  lane.WaitFor(dropped);
  EXPECT_FALSE(ran);
  EXPECT_EQ(lane.Failure().message(), "rank 1 left");
  EXPECT_EQ(lane.Wait().message(), "rank 1 left");
  EXPECT_TRUE(lane.Failure().ok() && lane.Wait().ok());
  lane.WaitFor(lane.Start([&] { return ran = true, absl::OkStatus(); }));
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace trainyard::engine
