#include "server/scheduler/leader_judge.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

constexpr absl::Duration kLeaderLease = absl::Seconds(4);

LeaderRecord Beats(int64_t beat) { return {"other", 7, beat}; }

TEST(LeaderJudgeTest, LeaseThatStoodStillForAllOfItsTimeIsOver) {
  LeaderJudge judge(kLeaderLease);
  EXPECT_EQ(judge.Left(absl::Seconds(100), Beats(1)), kLeaderLease);
  EXPECT_EQ(judge.Left(absl::Seconds(101), Beats(1)), absl::Seconds(3));
  EXPECT_EQ(judge.Left(absl::Seconds(103), Beats(1)), absl::Seconds(1));
  EXPECT_EQ(judge.Left(absl::Seconds(104), Beats(1)), absl::ZeroDuration());
}

TEST(LeaderJudgeTest, EachRenewalBeginsAnew) {
  LeaderJudge judge(kLeaderLease);
  int64_t beat = 1;
  for (absl::Duration now = absl::Seconds(100); now < absl::Seconds(130); now += absl::Seconds(1)) {
    EXPECT_GE(judge.Left(now, Beats(beat)), absl::Seconds(2)) << now;
    if (absl::ToInt64Seconds(now) % 2 == 0) ++beat;
  }
}

TEST(LeaderJudgeTest, TimeWithoutTheOwnStoreCountsForNothing) {
  LeaderJudge judge(kLeaderLease);
  judge.Left(absl::Seconds(100), Beats(1));
  judge.Left(absl::Seconds(102), Beats(1));
  EXPECT_EQ(judge.Left(absl::Seconds(160), Beats(1)), kLeaderLease)
      << "the leader had no store either";
  judge.Left(absl::Seconds(162), Beats(1));
  EXPECT_EQ(judge.Left(absl::Seconds(164), Beats(1)), absl::ZeroDuration());
}

TEST(LeaderJudgeTest, LeaderThatStoodDownIsFollowedAtOnce) {
  LeaderJudge judge(kLeaderLease);
  judge.Left(absl::Seconds(100), Beats(1));
  EXPECT_EQ(judge.Left(absl::Seconds(101), {"", 7, 2}), absl::ZeroDuration());
}

}  // namespace
}  // namespace trainyard
