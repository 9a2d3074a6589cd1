#include "executor/agent/lease.h"

#include <gtest/gtest.h>

#include "executor/agent/link.h"
#include "executor/agent/retention.h"

namespace trainyard {
namespace {

v1::Welcome Terms() {
  v1::Welcome welcome;
  welcome.set_heartbeat_ms(2000);
  welcome.set_lease_ms(10'000);
  welcome.set_self_fence_ms(8000);
  return welcome;
}

TEST(LeaseTest, HoldsNothingBeforeTheFirstSession) {
  EXPECT_FALSE(Lease().HoldsAt(absl::Milliseconds(1)));
}

TEST(LeaseTest, RegisteringCountsFromItsSending) {
  Lease lease;
  lease.Begin(Terms(), absl::Seconds(100));
  EXPECT_EQ(lease.until(), absl::Seconds(110));
  EXPECT_EQ(lease.fence_at(), absl::Seconds(108));
  EXPECT_TRUE(lease.HoldsAt(absl::Seconds(107.9)));
  EXPECT_FALSE(lease.HoldsAt(absl::Seconds(108)));
}

TEST(LeaseTest, HeartbeatCountsFromItsSendingHoweverLateTheAnswerIs) {
  Lease lease;
  lease.Begin(Terms(), absl::Seconds(100));
  const int64_t first = lease.Beat(absl::Seconds(102));
  lease.Beat(absl::Seconds(104));
  EXPECT_EQ(lease.fence_at(), absl::Seconds(108)) << "sending alone renews nothing";
  lease.Acknowledge(first);
  EXPECT_EQ(lease.fence_at(), absl::Seconds(110));
  EXPECT_EQ(lease.until(), absl::Seconds(112));
}

TEST(LeaseTest, UnknownAndRepeatedAnswersRenewNothing) {
  Lease lease;
  lease.Begin(Terms(), absl::Seconds(100));
  const int64_t id = lease.Beat(absl::Seconds(102));
  lease.Acknowledge(id + 1);
  EXPECT_EQ(lease.until(), absl::Seconds(110));
  lease.Acknowledge(id);
  lease.Acknowledge(id);
  EXPECT_EQ(lease.until(), absl::Seconds(112));
}

TEST(LeaseTest, AnswerOfAnEarlierSessionIsForgotten) {
  Lease lease;
  lease.Begin(Terms(), absl::Seconds(100));
  const int64_t id = lease.Beat(absl::Seconds(105));
  lease.Begin(Terms(), absl::Seconds(103));
  lease.Acknowledge(id);
  EXPECT_EQ(lease.until(), absl::Seconds(113));
}

TEST(LeaseTest, AdoptedWorkersKeepTheLeaseThatTheyHave) {
  Lease lease;
  lease.Inherit(absl::Seconds(50), absl::ZeroDuration());
  lease.Inherit(absl::Seconds(40), absl::ZeroDuration());
  EXPECT_EQ(lease.fence_at(), absl::Seconds(50));
  EXPECT_TRUE(lease.HoldsAt(absl::Seconds(49)));
}

TEST(LeaseTest, NonsenseInALeaseFileEndsWithTheFirstSession) {
  Lease lease;
  lease.Inherit(absl::Hours(1000), absl::Hours(2000));
  lease.Begin(Terms(), absl::Seconds(100));
  EXPECT_EQ(lease.until(), absl::Seconds(110));
  EXPECT_EQ(lease.fence_at(), absl::Seconds(108));
}

TEST(LeaseTest, FenceNeverLiesPastTheLease) {
  v1::Welcome odd = Terms();
  odd.set_self_fence_ms(60'000);
  Lease lease;
  lease.Begin(odd, absl::Seconds(0));
  EXPECT_EQ(lease.fence_at(), absl::Seconds(10));
}

TEST(LeaseTest, OrphansStepOnToTheirLimitAndNoFurther) {
  v1::Welcome terms = Terms();
  terms.set_orphan_limit_ms(60'000);
  Lease lease;
  lease.Begin(terms, absl::Seconds(100));
  EXPECT_FALSE(lease.HoldsAt(absl::Seconds(108)));
  EXPECT_EQ(lease.fence_at(), absl::Seconds(168));
  EXPECT_EQ(lease.LifeFrom(absl::Seconds(101)), absl::Seconds(111));
  EXPECT_EQ(lease.LifeFrom(absl::Seconds(150)), absl::Seconds(160));
  EXPECT_EQ(lease.LifeFrom(absl::Seconds(165)), absl::Seconds(168));
  // An agent that starts meanwhile goes on counting.
  Lease restarted;
  restarted.Inherit(absl::Seconds(150), absl::Seconds(168));
  restarted.Inherit(absl::Seconds(160), absl::Seconds(168));
  EXPECT_EQ(restarted.fence_at(), absl::Seconds(168)) << "however many ranks it adopts";
}

TEST(ReconnectPauseTest, BeginsShortGrowsAndStaysBounded) {
  EXPECT_EQ(ReconnectPause(0, 0.5), absl::Milliseconds(50));
  EXPECT_LT(ReconnectPause(3, 0.5), ReconnectPause(4, 0.5));
  EXPECT_EQ(ReconnectPause(1000, 0.5), absl::Seconds(1));
  EXPECT_EQ(ReconnectPause(1000, 0.0), absl::Milliseconds(750));
  EXPECT_LT(ReconnectPause(1000, 0.999), absl::Milliseconds(1250));
}

TEST(RetentionTest, OldestGoFirstByCountBytesAndAge) {
  const absl::Time now = absl::FromUnixSeconds(1'000'000);
  const std::vector<KeptRank> kept = {{"old", now - absl::Hours(3), 10},
                                      {"new", now - absl::Hours(1), 10},
                                      {"middle", now - absl::Hours(2), 10}};
  EXPECT_EQ(Expired(kept, {.count = 2}, now), std::vector<std::string>({"old"}));
  EXPECT_EQ(Expired(kept, {.bytes = 15}, now), std::vector<std::string>({"middle", "old"}));
  EXPECT_EQ(Expired(kept, {.age = absl::Minutes(90)}, now),
            std::vector<std::string>({"middle", "old"}));
  EXPECT_TRUE(Expired(kept, {}, now).empty());
}

}  // namespace
}  // namespace trainyard
