#include "server/scheduler/start_judge.h"

#include <gtest/gtest.h>

#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);

class StartJudgeTest : public ::testing::Test {
 protected:
  // What is left of the limit of the job's attempt, at `second` on the judge's clock.
  absl::Duration Left(int second, JobState state = JobState::kStarting, int64_t attempt = 1) {
    Snapshots s;
    store_time_ = -store_time_;
    s.snapshot.now = TestNow() + store_time_;
    s.Running({.id = "a"}, "n", {0}, state);
    s.snapshot.attempts[0].attempt = attempt;
    std::vector<AttemptRecord*> starting;
    for (size_t i = 0; i < s.snapshot.jobs.size(); ++i) {
      if (s.snapshot.jobs[i].state == JobState::kStarting) {
        starting.push_back(&s.snapshot.attempts[i]);
      }
    }
    judge_.Judge(absl::Seconds(second), s.snapshot.now, starting);
    return s.snapshot.attempts[0].start_by - s.snapshot.now;
  }

  StartJudge judge_{kLimit};
  absl::Duration store_time_ = absl::Seconds(30);  // the store's clock jumps to and fro
};

TEST_F(StartJudgeTest, CountsFromWhenItFirstSawTheAttempt) {
  EXPECT_EQ(Left(100), kLimit);
  EXPECT_EQ(Left(101), kLimit - absl::Seconds(1));
  EXPECT_EQ(Left(103), kLimit - absl::Seconds(3));
  EXPECT_EQ(Left(104, JobState::kStarting, 2), kLimit) << "another attempt";
}

TEST_F(StartJudgeTest, OnlyJobsThatAreStartingHaveADeadline) {
  EXPECT_EQ(Left(100, JobState::kRunning), absl::InfiniteDuration());
  EXPECT_EQ(Left(101, JobState::kSuspending), absl::InfiniteDuration());
  EXPECT_EQ(Left(102), kLimit);
}

TEST_F(StartJudgeTest, TimeInWhichTheStoreDidNotAnswerCountsForNobody) {
  Left(100);
  EXPECT_EQ(Left(101), kLimit - absl::Seconds(1));
  EXPECT_EQ(Left(1000), kLimit - absl::Seconds(1));
  EXPECT_EQ(Left(1001), kLimit - absl::Seconds(2));
  judge_.Heard(absl::Seconds(1002));
  EXPECT_EQ(Left(1004), kLimit - absl::Seconds(5)) << "it answered in between";
}

TEST_F(StartJudgeTest, WhoeverTakesTooLongIsOutOfTime) {
  for (int second = 100; second < 160; ++second) EXPECT_GT(Left(second), absl::ZeroDuration());
  EXPECT_EQ(Left(160), absl::ZeroDuration());
}

}  // namespace
}  // namespace trainyard
