// What one caller may do on a server, whatever others do.

#include "server/auth/caller_limits.h"

#include <gtest/gtest.h>

#include <vector>

namespace trainyard {
namespace {

const Principal kAnn{"user:ann", "submitter", "vision"};
const Principal kBob{"user:bob", "submitter", "vision"};

class CallerLimitsTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  CallerLimits limits_{{.submissions_per_minute = 60, .most_streams = 2}, clock_};
};

TEST_F(CallerLimitsTest, AMinutesWorthMayComeAtOnceAndThenOneASecond) {
  for (int i = 0; i < 60; ++i) EXPECT_EQ(limits_.TakeSubmissions(kAnn, 1), absl::ZeroDuration());
  EXPECT_EQ(limits_.TakeSubmissions(kAnn, 1), absl::Seconds(1));
  EXPECT_EQ(limits_.TakeSubmissions(kAnn, 1), absl::Seconds(1)) << "a refusal costs nothing";
  EXPECT_EQ(limits_.TakeSubmissions(kBob, 1), absl::ZeroDuration());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(limits_.TakeSubmissions(kAnn, 1), absl::ZeroDuration());
  EXPECT_GT(limits_.TakeSubmissions(kAnn, 1), absl::ZeroDuration());
  clock_.Advance(absl::Hours(1));
  for (int i = 0; i < 60; ++i) EXPECT_EQ(limits_.TakeSubmissions(kAnn, 1), absl::ZeroDuration());
  EXPECT_GT(limits_.TakeSubmissions(kAnn, 1), absl::ZeroDuration());
}

TEST_F(CallerLimitsTest, ALargeBatchIsTakenAndMadeUpFor) {
  EXPECT_EQ(limits_.TakeSubmissions(kAnn, 256), absl::ZeroDuration());
  EXPECT_EQ(limits_.TakeSubmissions(kAnn, 1), absl::Seconds(197));
  EXPECT_EQ(limits_.TakeSubmissions(kAnn, 0), absl::ZeroDuration()) << "a check is no submission";
  clock_.Advance(absl::Seconds(197));
  EXPECT_EQ(limits_.TakeSubmissions(kAnn, 1), absl::ZeroDuration());
}

TEST_F(CallerLimitsTest, ManyCallersAreForgottenOnceTheirMinuteIsOver) {
  for (int i = 0; i < 3000; ++i) {
    const Principal one{"user:" + std::to_string(i), "submitter", ""};
    ASSERT_EQ(limits_.TakeSubmissions(one, 60), absl::ZeroDuration());
    ASSERT_GT(limits_.TakeSubmissions(one, 1), absl::ZeroDuration());
    clock_.Advance(absl::Milliseconds(100));
  }
}

TEST_F(CallerLimitsTest, StreamsCountUntilTheyEnd) {
  std::vector<std::shared_ptr<void>> open;
  for (int i = 0; i < 2; ++i) open.push_back(limits_.TakeStream(kAnn).value());
  EXPECT_EQ(limits_.TakeStream(kAnn).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(limits_.TakeStream(kBob).ok());
  open.pop_back();
  EXPECT_TRUE(limits_.TakeStream(kAnn).ok());
}

TEST_F(CallerLimitsTest, WithoutLimitsNothingIsCounted) {
  CallerLimits none({}, clock_);
  EXPECT_EQ(none.TakeSubmissions(kAnn, 1'000'000), absl::ZeroDuration());
  EXPECT_EQ(none.TakeSubmissions(kAnn, 1), absl::ZeroDuration());
  EXPECT_TRUE(none.TakeStream(kAnn).ok());
}

}  // namespace
}  // namespace trainyard
