// Who may run a rank, who may say that it is gone, and what is waited for meanwhile.

#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

const AgentIdentity kAgent("n1", "agent", "boot-1:8:42:machine-1");
const AgentIdentity kOtherDirectory("n1", "agent", "boot-1:8:43:machine-1");
const AgentIdentity kBootedAnew("n1", "agent", "boot-2:8:42:machine-1");
const AgentIdentity kWiped("n1", "another", "boot-1:8:44:machine-1");
const AgentIdentity kElsewhere("n1", "another", "boot-3:8:42:machine-2");
const AgentIdentity kClone("n1", "agent", "boot-4:8:42:machine-3");

class ClaimSuite : public StoreSuite {
 protected:
  // A job that runs its first attempt on slot 0 of n1 under the claim of kAgent.
  JobRecord RunClaimed(const std::string& id) {
    RegisterAs(kAgent);
    Submit(id);
    EXPECT_EQ(Place(Get(id), {"n1"}), 1);
    const JobRecord job = Get(id);
    const RankEvents begun{.agent = kAgent,
                           .rank = {job.uid, 1, 0},
                           .events = Writer(job).Add(RankStarted{1, "cpu"}).Restored(0).Take()};
    EXPECT_FALSE(fleet().AppendEvents(begun)->fenced);
    return Get(id);
  }

  void Lose() { ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status()); }

  RankState StateOf(const JobRecord& job) { return fleet().FindRank(job.uid, 1, 0)->state; }
};

TEST_P(ClaimSuite, IsGivenOnceToWhoHoldsTheNode) {
  const JobRecord job = RunClaimed("a");
  const Claim claim = fleet().FindRank(job.uid, 1, 0)->claim;
  EXPECT_EQ(claim.node_uid, kAgent.uid);
  EXPECT_EQ(claim.instance, kAgent.instance);
  EXPECT_NE(claim.token, "");
  Submit("b");
  ASSERT_EQ(Place(Get("b"), {"n1"}, {1}), 1);
  EXPECT_NE(fleet().FindRank(Get("b").uid, 1, 0)->claim.token, claim.token);

  EXPECT_EQ(fleet().ReadDesired(kAgent)->size(), 2u);
  for (const AgentIdentity& other : {kOtherDirectory, kBootedAnew, kWiped, kElsewhere}) {
    EXPECT_TRUE(fleet().ReadDesired(other)->empty()) << other.uid << " " << other.instance;
  }
}

TEST_P(ClaimSuite, FencesWhoDoesNotHaveIt) {
  const JobRecord job = RunClaimed("a");
  RankEvents report{
      .agent = kAgent, .rank = {job.uid, 1, 0}, .events = Writer(job).Train(1).Take()};
  for (const AgentIdentity& other : {kOtherDirectory, kBootedAnew, kWiped, kElsewhere}) {
    report.agent = other;
    EXPECT_TRUE(fleet().AppendEvents(report)->fenced) << other.uid << " " << other.instance;
  }
  report.agent = kAgent;
  report.claim = "of another life of the database";
  EXPECT_TRUE(fleet().AppendEvents(report)->fenced);
  for (const auto& answer : fleet().AppendGroup({report, report})) EXPECT_TRUE(answer->fenced);
  report.claim = fleet().FindRank(job.uid, 1, 0)->claim.token;
  EXPECT_FALSE(fleet().AppendEvents(report)->fenced);
  EXPECT_EQ(jobs().ReadMetrics(job.uid, {})->size(), 1u);
  report.claim = "";
  report.events = Writer(job).Train(2).Take();
  EXPECT_FALSE(fleet().AppendEvents(report)->fenced) << "an agent of before does not know it";
}

TEST_P(ClaimSuite, IsKeptByAnAgentThatMayNotAskForTheMachineAnyMore) {
  const JobRecord job = RunClaimed("a");
  const AgentIdentity as_user("n1", "agent", "boot-1:8:42:");
  RegisterAs(as_user);
  EXPECT_EQ(fleet().ReadDesired(as_user)->size(), 1u);
  EXPECT_FALSE(
      fleet()
          .AppendEvents(
              {.agent = as_user, .rank = {job.uid, 1, 0}, .events = Writer(job).Train(1).Take()})
          ->fenced);
  RegisterAs(kAgent);
  EXPECT_EQ(fleet().ReadDesired(kAgent)->size(), 1u);
}

TEST_P(ClaimSuite, SlotOfALostRankIsTakenUntilItsAgentSaysThatItIsGone) {
  const JobRecord job = RunClaimed("a");
  Lose();
  EXPECT_EQ(StateOf(job), RankState::kLost);
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  RegisterAs(kAgent);
  EXPECT_EQ(Place(Get("a"), {"n1"}), 0);
  EXPECT_TRUE(fleet().ReadDesired(kAgent)->empty()) << "a lost rank is not started again";
  ASSERT_EQ(fleet().ListNodes()->at(0).lost_ranks.size(), 1u);
  ASSERT_EQ(Place(Get("a"), {"n1"}, {1}), 1) << "the other slots are free";
  EXPECT_EQ(fleet().ListRanks("n1")->size(), 2u);

  const ChangePosition before = scheduler().ReadChanges("", false)->position;
  EXPECT_TRUE(*fleet().ReportAbsent(kAgent, {{job.uid, 1, 0}}));
  EXPECT_EQ(StateOf(job), RankState::kGone);
  EXPECT_EQ(Get("a").state, JobState::kStarting) << "its second attempt";
  const auto changes = scheduler().ReadChanges(before, false);
  ASSERT_EQ(changes->nodes.size(), 1u) << "the leader is told";
  EXPECT_TRUE(changes->nodes[0].lost_ranks.empty());
  Submit("b");
  EXPECT_EQ(Place(Get("b"), {"n1"}), 1);
  EXPECT_FALSE(*fleet().ReportAbsent(kAgent, {{job.uid, 1, 0}})) << "once";
}

TEST_P(ClaimSuite, NewBootOfTheMachineProvesItAndACopyOfItsDiskDoesNot) {
  const JobRecord job = RunClaimed("a");
  Lose();
  RegisterAs(kClone);
  EXPECT_FALSE(*fleet().ReportAbsent(kClone, {{job.uid, 1, 0}}));
  Lose();
  RegisterAs(kBootedAnew);
  EXPECT_TRUE(*fleet().ReportAbsent(kBootedAnew, {{job.uid, 1, 0}}));
  EXPECT_EQ(StateOf(job), RankState::kGone);
}

TEST_P(ClaimSuite, NobodyElseOnThatMachineProvesItButAnOperatorDoes) {
  const JobRecord job = RunClaimed("a");
  Lose();
  for (const AgentIdentity& other : {kOtherDirectory, kWiped}) {
    RegisterAs(other);
    EXPECT_FALSE(*fleet().ReportAbsent(other, {{job.uid, 1, 0}})) << other.instance;
    EXPECT_EQ(Place(Get("a"), {"n1"}), 0) << other.instance;
    Lose();
  }
  RegisterAs(kWiped);
  EXPECT_EQ(StateOf(job), RankState::kLost);
  EXPECT_EQ(*fleet().ConfirmEmpty("n1"), 1);
  EXPECT_EQ(*fleet().ConfirmEmpty("n1"), 0);
  EXPECT_EQ(fleet().ConfirmEmpty("n9").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(StateOf(job), RankState::kGone);
  EXPECT_EQ(Place(Get("a"), {"n1"}), 1);
}

TEST_P(ClaimSuite, AnotherMachineOfTheNameHasSlotsOfItsOwn) {
  const JobRecord job = RunClaimed("a");
  Lose();
  RegisterAs(kElsewhere);
  EXPECT_FALSE(*fleet().ReportAbsent(kElsewhere, {{job.uid, 1, 0}}));
  EXPECT_EQ(StateOf(job), RankState::kLost);
  EXPECT_EQ(Place(Get("a"), {"n1"}), 1);
  EXPECT_FALSE(
      MayHoldSlots(fleet().ListNodes()->at(0), fleet().ListNodes()->at(0).lost_ranks.at(0)));
}

TEST_P(ClaimSuite, CancelWaitsForProof) {
  const JobRecord job = RunClaimed("a");
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  Lose();
  EXPECT_EQ(Get("a").state, JobState::kCancelling);
  RegisterAs(kElsewhere);
  EXPECT_FALSE(*fleet().ReportAbsent(kElsewhere, {{job.uid, 1, 0}}));
  EXPECT_EQ(Get("a").state, JobState::kCancelling);
  Lose();
  RegisterAs(kAgent);
  EXPECT_TRUE(*fleet().ReportAbsent(kAgent, {{job.uid, 1, 0}}));
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  ExpectGaplessFeed(job.uid);
}

TEST_P(ClaimSuite, CancelWaitsNoLongerThanAWorkerCanLive) {
  const JobRecord job = RunClaimed("a");
  const int64_t epoch = Lead();
  const auto end = [&] {
    return *scheduler().Apply(epoch, {.overdue_cancels = {{job.uid, Get("a").version}}});
  };
  EXPECT_EQ(end(), 0) << "it runs";
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  EXPECT_EQ(end(), 0) << "its rank is not over";
  Lose();
  EXPECT_EQ(end(), 1);
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(StateOf(job), RankState::kLost);
  RegisterAs(kAgent);
  Submit("b");
  EXPECT_EQ(Place(Get("b"), {"n1"}), 0) << "the slot is taken all the same";
  EXPECT_TRUE(*fleet().ReportAbsent(kAgent, {{job.uid, 1, 0}}));
  EXPECT_EQ(Place(Get("b"), {"n1"}), 1);
  ExpectGaplessFeed(job.uid);
}

TEST_P(ClaimSuite, LostRankOutlivesTheRecordOfItsJob) {
  const JobRecord job = RunClaimed("a");
  Lose();
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  ASSERT_EQ(*scheduler().Apply(Lead(), {.overdue_cancels = {{job.uid, Get("a").version}}}), 1);
  ASSERT_OK(jobs().Delete({"default", "a"}, 0));
  RegisterAs(kAgent);
  Submit("b");
  EXPECT_EQ(Place(Get("b"), {"n1"}), 0);
  ASSERT_EQ(fleet().ListRanks("n1")->size(), 1u);
  const ChangePosition before = scheduler().ReadChanges("", false)->position;
  EXPECT_TRUE(*fleet().ReportAbsent(kAgent, *fleet().ListRanks("n1")));
  const auto changes = scheduler().ReadChanges(before, false);
  ASSERT_EQ(changes->nodes.size(), 1u) << "the leader is told";
  EXPECT_TRUE(changes->nodes[0].lost_ranks.empty());
  EXPECT_TRUE(fleet().ListRanks("n1")->empty());
  EXPECT_EQ(Place(Get("b"), {"n1"}), 1);
}

TEST_P(ClaimSuite, CancelOfAJobThatWaitsWaitsForLostRanksOfAnyAttempt) {
  const JobRecord job = RunClaimed("a");
  Lose();
  RegisterAs(kElsewhere);
  ASSERT_EQ(Place(Get("a"), {"n1"}), 1);
  Lose();
  RegisterAs(kElsewhere);
  EXPECT_TRUE(*fleet().ReportAbsent(kElsewhere, {{job.uid, 2, 0}}));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  EXPECT_EQ(Get("a").state, JobState::kCancelling) << "its first attempt may run";
  Lose();
  RegisterAs(kAgent);
  EXPECT_TRUE(*fleet().ReportAbsent(kAgent, {{job.uid, 1, 0}}));
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  ExpectGaplessFeed(job.uid);
}

TEST_P(ClaimSuite, CancelOfARunningJobWaitsForALostRankOfAnEarlierAttempt) {
  const JobRecord job = RunClaimed("a");
  Lose();
  RegisterAs(kElsewhere);
  ASSERT_EQ(Place(Get("a"), {"n1"}), 1);
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  EXPECT_TRUE(*fleet().ReportAbsent(kElsewhere, {{job.uid, 2, 0}}));
  EXPECT_EQ(Get("a").state, JobState::kCancelling);
  const auto changes = scheduler().ReadChanges("", false);
  ASSERT_EQ(changes->attempts.size(), 1u);
  EXPECT_TRUE(changes->attempts[0].lost_before);
  EXPECT_EQ(*fleet().ConfirmEmpty("n1"), 1);
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
}

TEST_P(ClaimSuite, GoWithAnAgentThatLearnsToProveWhoItIs) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  NodeRecord successor;
  successor.name = "n1";
  successor.uid = kAgent.uid;
  successor.instance = kAgent.instance;
  successor.incarnation = "i2";
  successor.slots = {{.index = 0, .device = "CPU"}};
  EXPECT_EQ(fleet().RegisterNode(successor, absl::Seconds(10)).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "who does not know what runs there is somebody else";
  EXPECT_EQ(fleet().ListNodes()->at(0).uid, "");
  successor.found = {{job.uid, 1, 0}};
  EXPECT_OK(fleet().RegisterNode(successor, absl::Seconds(10)).status());
  ASSERT_EQ(fleet().ReadDesired(kAgent)->size(), 1u);
  const RankEvents report{
      .agent = kAgent, .rank = {job.uid, 1, 0}, .events = Writer(job).Train(1).Take()};
  EXPECT_FALSE(fleet().AppendEvents(report)->fenced);
  EXPECT_TRUE(Append(job, 0, "n1", Writer(job).Train(2)).fenced) << "the name alone will not do";
}

INSTANTIATE_TEST_SUITE_P(Stores, ClaimSuite, ::testing::Values("memory", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trainyard::testing
