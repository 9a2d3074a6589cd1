#include "server/fleet/assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace trainyard {
namespace {

TEST(Assignment, TimeThatPassesIsNoChangeOfTheDesiredSet) {
  DesiredRank rank;
  rank.rank.id = {"0123456789", 2, 0};
  rank.rank.slots = {3};
  rank.job.project = "p";
  rank.job.job_id = "j";
  rank.job.uid = "0123456789";
  rank.attempt.restore_uri = "file:///c/step-00000010";
  rank.attempt.restore_step = 10;
  rank.attempt.ranks = {rank.rank};
  rank.addresses = {"host"};
  const std::string running = DesiredFingerprint({rank});
  rank.suspend = true;
  rank.suspend_deadline = absl::FromUnixSeconds(100);
  EXPECT_NE(DesiredFingerprint({rank}), running);
  const auto early = MakeAssignment(rank, "file:///root/", absl::FromUnixSeconds(40));
  const auto late = MakeAssignment(rank, "file:///root/", absl::FromUnixSeconds(200));
  ASSERT_TRUE(early.ok());
  EXPECT_EQ(early->grace_ms(), 60000);
  EXPECT_EQ(late->grace_ms(), 0);
  EXPECT_EQ(early->wish(), v1::Assignment::SUSPEND);
  EXPECT_EQ(early->checkpoint_root(), "file:///root/p/j-01234567");
  EXPECT_EQ(early->restore().step(), 10);
  EXPECT_EQ(early->rank_addresses(0), "host:29403");
}

// Workers of before refuse a range with a layout.
TEST(Assignment, RanksInGroupsAreToldOfTheirOwnNumberOfSlots) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_min_slots(2);
  spec.mutable_resources()->set_max_slots(6);
  DesiredRank rank;
  rank.job.uid = "0123456789";
  rank.job.spec = spec.SerializeAsString();
  rank.attempt.world_size = 4;
  const auto range = [&rank] {
    const v1::Resources resources =
        MakeAssignment(rank, "file:///r", absl::Now())->spec().resources();
    return std::pair(resources.min_slots(), resources.max_slots());
  };
  EXPECT_EQ(range(), std::pair(2, 6));
  spec.mutable_parallel()->mutable_layout()->set_tensor(2);
  rank.job.spec = spec.SerializeAsString();
  EXPECT_EQ(range(), std::pair(4, 4));
}

// The job may have got another one since.
TEST(Assignment, IsInTheLayoutThatTheAttemptWasPlacedIn) {
  v1::JobSpec spec;
  spec.mutable_parallel()->mutable_layout()->set_tensor(2);
  spec.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
  DesiredRank rank;
  rank.job.uid = "0123456789";
  rank.job.spec = spec.SerializeAsString();
  rank.job.layout = R"({"shard":"NONE","layout":{"tensor":4}})";
  rank.attempt.world_size = 3;
  const auto parallel = [&rank] {
    return MakeAssignment(rank, "file:///r", absl::Now())->spec().parallel();
  };
  EXPECT_EQ(parallel().SerializeAsString(), spec.parallel().SerializeAsString());
  rank.attempt.layout = R"({"shard":"NONE"})";
  EXPECT_FALSE(parallel().has_layout());
  EXPECT_EQ(parallel().shard(), v1::Parallel::NONE);
  const auto assigned = MakeAssignment(rank, "file:///r", absl::Now());
  EXPECT_EQ(assigned->spec().resources().max_slots(), 3) << "no multiple of what it was";
  // Its spec is refused with less than two slots.
  spec.mutable_parallel()->set_second_owner(true);
  rank.job.spec = spec.SerializeAsString();
  rank.attempt.world_size = 1;
  const auto left = MakeAssignment(rank, "file:///r", absl::Now());
  EXPECT_EQ(left->spec().resources().min_slots(), 1);
  EXPECT_EQ(left->spec().resources().max_slots(), 2);
  rank.attempt.layout = "{";
  EXPECT_TRUE(absl::IsInternal(MakeAssignment(rank, "file:///r", absl::Now()).status()));
}

// A rank that has all of the state does not wait for others.
TEST(Assignment, RanksThatHaveAShareAreToldWhoIsLeft) {
  v1::JobSpec spec;
  spec.mutable_parallel()->set_second_owner(true);
  DesiredRank desired;
  desired.suspend = true;
  desired.job.uid = "0123456789";
  desired.job.second_owner = true;
  desired.job.state = JobState::kRunning;
  desired.attempt.world_size = 3;
  for (int rank = 0; rank < 3; ++rank) {
    RankRecord& record = desired.attempt.ranks.emplace_back();
    record.id = {"0123456789", 1, rank};
    record.state = RankState::kRunning;
    record.outcome = RankOutcome::kFailed;
    record.failure = {.category = "PEER", .retryable = true, .has_state = rank != 1};
  }
  desired.rank = desired.attempt.ranks[2];
  int64_t grace_ms = 0;
  const auto told = [&](v1::Parallel::Shard shard) {
    spec.mutable_parallel()->set_shard(shard);
    desired.job.spec = spec.SerializeAsString();
    const v1::Assignment assignment = MakeAssignment(desired, "file:///r", absl::Now()).value();
    EXPECT_EQ(assignment.keep_state(), v1::Assignment::ALONE);
    grace_ms = assignment.grace_ms();
    return std::vector<int>(assignment.survivors().begin(), assignment.survivors().end());
  };
  EXPECT_EQ(told(v1::Parallel::NONE), std::vector<int>());
  EXPECT_EQ(told(v1::Parallel::SHARD_UNSPECIFIED), std::vector<int>());
  EXPECT_EQ(grace_ms, 20'000);
  EXPECT_EQ(told(v1::Parallel::OPTIMIZER), (std::vector<int>{0, 2}));
  EXPECT_EQ(grace_ms, 20'000);
  const std::string known = DesiredFingerprint({desired});
  desired.attempt.ranks[0].outcome = RankOutcome::kNone;  // it has not said anything
  desired.attempt.ranks[0].failure.reset();
  EXPECT_EQ(told(v1::Parallel::PARAMETERS), std::vector<int>());
  EXPECT_EQ(grace_ms, 45'000) << "until it is known who is left";
  EXPECT_NE(DesiredFingerprint({desired}), known) << "the agent is told of the change";
}

TEST(Assignment, RanksAreReachedAtThePortsOfTheirSlots) {
  EXPECT_EQ(*RankAddress("host", 3), "host:29403");
  EXPECT_EQ(*RankAddress("host:31000", 3), "host:31003");
  EXPECT_EQ(*RankAddress("10.0.0.7:31000", 0), "10.0.0.7:31000");
  EXPECT_EQ(*RankAddress("fe80::1", 1), "[fe80::1]:29401");
  EXPECT_EQ(*RankAddress("[fe80::1]:31000", 1), "[fe80::1]:31001");
  for (const char* bad : {"host:", "host:x", "host:0", "host:65535", "host:99999999999", ":-1"}) {
    EXPECT_FALSE(RankAddress(bad, 1).ok()) << bad;
  }
}

}  // namespace
}  // namespace trainyard
