#include "server/scheduler/lease_judge.h"

#include <gtest/gtest.h>

#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

constexpr absl::Duration kLease = absl::Seconds(10);

// What is left of the leases of "a" and "b", whose beats are given, at `now` on the judge's clock.
// The store's clock says what it likes.
struct Left {
  absl::Duration a, b;
};

class LeaseJudgeTest : public ::testing::Test {
 protected:
  Left Judge(absl::Duration now, int64_t beat_a, int64_t beat_b) {
    SchedulerSnapshot snapshot;
    store_time_ = -store_time_;
    snapshot.now = TestNow() + store_time_;
    snapshot.nodes.resize(2);
    snapshot.nodes[0].name = "a";
    snapshot.nodes[0].beat = beat_a;
    snapshot.nodes[1].name = "b";
    snapshot.nodes[1].beat = beat_b;
    judge_.Judge(now, snapshot.now, {&snapshot.nodes[0], &snapshot.nodes[1]});
    return {snapshot.nodes[0].lease_end - snapshot.now, snapshot.nodes[1].lease_end - snapshot.now};
  }

  LeaseJudge judge_{kLease};
  absl::Duration store_time_ =
      absl::Seconds(30);  // the store's clock jumps by a minute, to and fro
};

TEST_F(LeaseJudgeTest, CountsFromTheLastBeatThatItSaw) {
  EXPECT_EQ(Judge(absl::Seconds(100), 1, 1).a, kLease) << "new ones have all of it";
  const Left left = Judge(absl::Seconds(101), 1, 2);
  EXPECT_EQ(left.a, kLease - absl::Seconds(1));
  EXPECT_EQ(left.b, kLease);
  EXPECT_EQ(Judge(absl::Seconds(103), 1, 2).a, kLease - absl::Seconds(3));
  EXPECT_EQ(Judge(absl::Seconds(104), 2, 2).a, kLease);
}

TEST_F(LeaseJudgeTest, ANodeThatStandsStillIsOverdue) {
  for (int second = 0; second <= 12; ++second) Judge(absl::Seconds(100 + second), 1, second);
  const Left left = Judge(absl::Seconds(113), 1, 13);
  EXPECT_EQ(left.a, kLease - absl::Seconds(13));
  EXPECT_EQ(left.b, kLease);
}

TEST_F(LeaseJudgeTest, AStoreThatWasAwayCostsNobodyTheLease) {
  Judge(absl::Seconds(100), 1, 1);
  Judge(absl::Seconds(102), 1, 2);
  const Left left = Judge(absl::Seconds(222), 1, 2);  // two minutes later
  EXPECT_EQ(left.a, kLease - absl::Seconds(2)) << "the gap counts for nothing";
  EXPECT_EQ(left.b, kLease);
  EXPECT_EQ(Judge(absl::Seconds(224), 1, 2).a, kLease - absl::Seconds(4));
}

TEST_F(LeaseJudgeTest, TheJudgesOwnSlownessIsNoAbsenceOfTheStore) {
  Judge(absl::Seconds(100), 1, 1);
  judge_.Heard(absl::Seconds(101.5));
  EXPECT_EQ(Judge(absl::Seconds(103), 1, 1).a, kLease - absl::Seconds(3));
}

TEST_F(LeaseJudgeTest, WhoWasNearlyOverdueIsLeftTimeToComeBack) {
  for (int second = 0; second <= 9; ++second) Judge(absl::Seconds(100 + second), 1, second);
  EXPECT_EQ(Judge(absl::Seconds(150), 1, 9).a, LeaseJudge::kLeastAfterGap);
}

TEST_F(LeaseJudgeTest, ANodeThatWasForgottenBeginsAnew) {
  Judge(absl::Seconds(100), 5, 1);
  judge_.Judge(absl::Seconds(101), TestNow(), {});
  EXPECT_EQ(Judge(absl::Seconds(102), 5, 1).a, kLease);
}

}  // namespace
}  // namespace trainyard
