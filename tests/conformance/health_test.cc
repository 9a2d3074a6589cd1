// Failures of nodes, what they make of jobs, and cordons.

#include <algorithm>

#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

class HealthSuite : public StoreSuite {
 protected:
  NodeRecord Node(const std::string& name) {
    const absl::StatusOr<std::vector<NodeRecord>> nodes = fleet().ListNodes();
    EXPECT_OK(nodes.status());
    for (const NodeRecord& node : *nodes) {
      if (node.name == name) return node;
    }
    ADD_FAILURE() << "no node " << name;
    return {};
  }
};

TEST_P(HealthSuite, FailuresOfDevicesAndDisksAreKeptWithTheirNode) {
  Register("n1");
  for (const char* id : {"device", "disk", "user"}) Submit(id);
  const JobRecord device = Run("device", {"n1"});
  Append(device, 0, "n1", Writer(device).Fails(true, "DEVICE").Exited(71));
  const JobRecord disk = Run("disk", {"n1"});
  const JobRecord user = [&] {
    EXPECT_EQ(Place(Get("user"), {"n1"}, {1}), 1);
    return Get("user");
  }();
  EventWriter& of_disk = Writer(disk).Fails(true, "STORAGE");
  EventWriter& of_user = Writer(user).Fails(false, "USER");
  for (const auto& answer :
       fleet().AppendGroup({{"n1", {disk.uid, disk.attempt, 0}, of_disk.Take()},
                            {"n1", {user.uid, user.attempt, 0}, of_user.Take()}})) {
    EXPECT_OK(answer.status());
  }
  const std::vector<NodeFailure> failures = Node("n1").failures;
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].job_id, "device");
  EXPECT_EQ(failures[0].category, "DEVICE");
  EXPECT_EQ(failures[1].job_uid, disk.uid);
  EXPECT_EQ(failures[1].attempt, 1);
  EXPECT_GT(failures[1].time, failures[0].time - absl::Hours(1));
  EXPECT_EQ(scheduler().ReadSnapshot()->nodes.at(0).failures.size(), 2u);
}

TEST_P(HealthSuite, ALossIsOneFailureOfTheNodeForAllWhomItStruck) {
  Register("n1");
  for (const char* id : {"a", "b"}) Submit(id);
  Run("a", {"n1"});
  ASSERT_EQ(Place(Get("b"), {"n1"}, {1}), 1);
  ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status());
  const std::vector<NodeFailure> failures = Node("n1").failures;
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].time, failures[1].time);
  EXPECT_EQ(failures[0].category, "LOST");
  EXPECT_EQ(Get("a").losses, 1);
  EXPECT_EQ(Get("a").avoid_node, "n1");
  const auto snapshot = scheduler().ReadSnapshot();
  for (const JobRecord* job : JobsOf(*snapshot)) EXPECT_EQ(job->avoid_node, "n1");
}

TEST_P(HealthSuite, LossesInARowSpendRestartsUntilThereAreNone) {
  Submit("a");
  Register("n1");
  for (int loss = 1; loss <= kFreeLosses + 3; ++loss) {
    Run("a", {"n1"});
    ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status());
    Register("n1");
    EXPECT_EQ(Get("a").losses, loss);
    EXPECT_EQ(Get("a").restarts, std::clamp(loss - kFreeLosses, 0, 2));
  }
  EXPECT_EQ(Get("a").state, JobState::kFailed);
  EXPECT_EQ(Get("a").reason.code, reason::kRestartsSpent);
  EXPECT_EQ(Get("a").losses, 5) << "kept with what ended";
  const JobRecord resumed = *jobs().Resume({"default", "a"}, 0, kUser);
  EXPECT_EQ(resumed.losses, 0);
  EXPECT_EQ(resumed.avoid_node, "");
  EXPECT_EQ(Get("a").losses, 0);
}

TEST_P(HealthSuite, CheckpointEndsTheRowOfLosses) {
  Register("n1");
  Submit("a");
  Run("a", {"n1"});
  ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status());
  Register("n1");
  const JobRecord job = Run("a", {"n1"});
  EXPECT_EQ(job.losses, 1);
  EXPECT_EQ(job.avoid_node, "") << "it began";
  Append(job, 0, "n1", Writer(job).Train(1).Checkpoint(1));
  EXPECT_EQ(Get("a").losses, 0);
}

TEST_P(HealthSuite, AStartThatHangsIsEndedLikeAFailure) {
  Register("n1");
  Submit("a");
  ASSERT_EQ(Place(Get("a"), {"n1"}), 1);
  const JobRecord job = Get("a");
  FailedStart start{.job_uid = job.uid, .job_version = job.version - 1};
  start.failure = {.category = "START", .message = "late", .retryable = true, .node = "n1"};
  EXPECT_EQ(*scheduler().Apply(Lead(), {.failed_starts = {start}}), 0) << "it moved meanwhile";
  start.job_version = job.version;
  EXPECT_EQ(*scheduler().Apply(Lead(), {.failed_starts = {start}}), 1);
  EXPECT_EQ(*scheduler().Apply(Lead(), {.failed_starts = {start}}), 0);
  EXPECT_TRUE(fleet().ReadDesired("n1")->empty());
  EXPECT_GT(Get("a").version, job.version);
  EXPECT_EQ(Get("a").state, JobState::kStarting) << "its process is not proven gone";
  EXPECT_TRUE(*fleet().ReportAbsent("n1", {{job.uid, 1, 0}}));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").restarts, 1);
  EXPECT_EQ(Get("a").failure->category, "START");
  EXPECT_EQ(Get("a").avoid_node, "n1");
  EXPECT_EQ(Node("n1").failures.at(0).category, "START");
  ExpectGaplessFeed(job.uid);
}

TEST_P(HealthSuite, ALossIsChargedOnce) {
  Register("n1");
  Submit("a");
  Run("a", {"n1"});
  ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status());
  EXPECT_FALSE(Node("n1").failures.at(0).charged);
  const JobRecord job = Get("a");
  LossCharge charge{.job_uid = job.uid, .job_version = job.version, .node = "n1", .attempt = 1};
  charge.survivor = "projects/default/jobs/b";
  EXPECT_EQ(*scheduler().Apply(Lead(), {.charges = {charge}}), 1);
  EXPECT_EQ(Get("a").restarts, 1);
  EXPECT_TRUE(Node("n1").failures.at(0).charged);
  EXPECT_EQ(*scheduler().Apply(Lead(), {.charges = {charge}}), 0);
  for (const int changed : {1, 1}) {
    charge.job_version = Get("a").version;
    EXPECT_EQ(*scheduler().Apply(Lead(), {.charges = {charge}}), changed);
  }
  EXPECT_EQ(Get("a").state, JobState::kFailed) << "two restarts, three charges";
  ExpectGaplessFeed(job.uid);
}

TEST_P(HealthSuite, ACordonStaysUntilAnOperatorLiftsIt) {
  Register("n1");
  EXPECT_EQ(*scheduler().Apply(Lead(), {.cordons = {{"n1", "sick"}, {"n9", "gone"}}}), 1);
  EXPECT_EQ(Node("n1").cordon, "sick");
  EXPECT_EQ(*scheduler().Apply(Lead(), {.cordons = {{"n1", "worse"}}}), 0);
  EXPECT_EQ(scheduler().Apply(0, {.cordons = {{"n1", "stale"}}}).status().code(),
            absl::StatusCode::kAborted);
  ASSERT_OK(fleet().SetDraining("n1", true).status());
  EXPECT_EQ(Node("n1").cordon, "sick");
  Register("n1", 4, "i2");
  EXPECT_EQ(Node("n1").cordon, "sick") << "another session of the same boot";
  EXPECT_EQ(Node("n1").lifted_time, absl::InfinitePast());
  EXPECT_EQ(fleet().SetDraining("n1", false)->cordon, "");
  EXPECT_GT(Node("n1").lifted_time, absl::UnixEpoch());
}

TEST_P(HealthSuite, ANewBootIsJudgedAnew) {
  NodeRecord node{.name = "n1", .uid = "u", .instance = "boot1", .incarnation = "i1"};
  ASSERT_OK(fleet().RegisterNode(node, absl::Seconds(10)).status());
  EXPECT_EQ(*scheduler().Apply(Lead(), {.cordons = {{"n1", "sick"}}}), 1);
  ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status());
  node.incarnation = "i2";
  EXPECT_EQ(fleet().RegisterNode(node, absl::Seconds(10))->cordon, "sick");
  EXPECT_EQ(Node("n1").boot_time, absl::InfinitePast());
  ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status());
  node.instance = "boot2";
  EXPECT_EQ(fleet().RegisterNode(node, absl::Seconds(10))->cordon, "");
  EXPECT_GT(Node("n1").boot_time, absl::UnixEpoch());
}

TEST_P(HealthSuite, WhatANodeTellsIsThatOfItsLastHeartbeat) {
  Register("n1");
  NodeReport report{.usage = {},
                    .disk_free_bytes = 1,
                    .disk_total_bytes = 2,
                    .state_dir = "/var/\"x\"",
                    .memory_free_bytes = int64_t{3} << 40,
                    .memory_total_bytes = int64_t{4} << 40,
                    .failed_starts = 5,
                    .failed_writes = 6};
  ASSERT_OK(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), report));
  const NodeReport told = Node("n1").report;
  EXPECT_EQ(told.disk_total_bytes, 2);
  EXPECT_EQ(told.state_dir, "/var/\"x\"");
  EXPECT_EQ(told.memory_free_bytes, int64_t{3} << 40);
  EXPECT_EQ(told.memory_total_bytes, int64_t{4} << 40);
  EXPECT_EQ(told.failed_starts, 5);
  EXPECT_EQ(told.failed_writes, 6);
  ASSERT_OK(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {}));
  EXPECT_FALSE(Node("n1").report.memory_free_bytes.has_value());
  EXPECT_EQ(Node("n1").report.state_dir, "");
}

INSTANTIATE_TEST_SUITE_P(Stores, HealthSuite, ::testing::Values("memory", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trainyard::testing
