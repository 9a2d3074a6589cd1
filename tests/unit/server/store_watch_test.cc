#include "server/api/store_watch.h"

#include <gtest/gtest.h>

#include <deque>

namespace trainyard {
namespace {

// A store that is there or not, and what its watch told.
class StoreWatchTest : public ::testing::Test {
 protected:
  absl::Status Probe() {
    absl::MutexLock lock(&mu_);
    ++probes_;
    return store_;
  }
  void Tell(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    told_.push_back(status);
  }
  void SetStore(const absl::Status& store) {
    absl::MutexLock lock(&mu_);
    store_ = store;
  }
  // Two whole probes from now on.
  void AwaitProbes() {
    absl::MutexLock lock(&mu_);
    const int goal = probes_ + 2;
    const auto probed = [this, goal] {
      mu_.AssertHeld();
      return probes_ >= goal;
    };
    ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&probed), absl::Seconds(60)));
  }
  absl::Status AwaitTold() {
    absl::MutexLock lock(&mu_);
    const auto any = [this] {
      mu_.AssertHeld();
      return !told_.empty();
    };
    if (!mu_.AwaitWithTimeout(absl::Condition(&any), absl::Seconds(60))) {
      return absl::DeadlineExceededError("told nothing");
    }
    const absl::Status told = told_.front();
    told_.pop_front();
    return told;
  }
  bool ToldNothing() {
    absl::MutexLock lock(&mu_);
    return told_.empty();
  }

  FakeClock clock_;
  absl::Mutex mu_;
  absl::Status store_ ABSL_GUARDED_BY(mu_);
  int probes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<absl::Status> told_ ABSL_GUARDED_BY(mu_);
  StoreWatch watch_{[this] { return Probe(); }, clock_,
                    [this](const absl::Status& status) { Tell(status); }};
};

TEST_F(StoreWatchTest, SilenceOfThreeSecondsIsToldOnceAndItsEndToo) {
  AwaitProbes();
  SetStore(absl::UnavailableError("the database did not answer"));
  AwaitProbes();
  clock_.Advance(absl::Seconds(2.9));
  AwaitProbes();
  EXPECT_TRUE(ToldNothing());
  clock_.Advance(absl::Seconds(0.1));
  const absl::Status away = AwaitTold();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_NE(away.message().find("did not answer"), absl::string_view::npos) << away;
  AwaitProbes();
  EXPECT_TRUE(ToldNothing());
  SetStore(absl::OkStatus());
  EXPECT_TRUE(AwaitTold().ok());
  AwaitProbes();
  EXPECT_TRUE(ToldNothing());
}

}  // namespace
}  // namespace trainyard
