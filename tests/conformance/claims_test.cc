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

  // The same, with a step that is stored.
  JobRecord RunStepping(const std::string& id) {
    const JobRecord job = RunClaimed(id);
    Step(job, 1);
    return Get(id);
  }

  void Step(const JobRecord& job, int64_t step) {
    EXPECT_FALSE(fleet()
                     .AppendEvents({.agent = kAgent,
                                    .rank = {job.uid, 1, 0},
                                    .events = Writer(job).Train(step).Take()})
                     ->fenced);
  }

  // Whether the job rejoins when the agent registers and says that it runs its only rank.
  bool Rejoins(const AgentIdentity& agent, const JobRecord& job) {
    return !RegisterAs(agent, 4, {RunningRankOf(job)}).empty();
  }

  RunningRank RunningRankOf(const JobRecord& job) {
    return {{job.uid, 1, 0}, fleet().FindRank(job.uid, 1, 0)->claim.token};
  }

  // As RegisterAs has it.
  static AgentIdentity InSession(AgentIdentity agent) {
    agent.session = "i1";
    return agent;
  }

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
  EXPECT_EQ(ListRanks(fleet(), "n1")->size(), 2u);

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

TEST_P(ClaimSuite, JobThatNobodySupersededGoesOnWhereItWasLost) {
  const JobRecord job = RunStepping("a");
  Lose();
  EXPECT_EQ(Get("a").losses, 1);
  EXPECT_EQ(Get("a").avoid_node, "n1");
  EXPECT_EQ(fleet().ListNodes()->at(0).failures.size(), 1u);
  EXPECT_TRUE(Get("a").failure.has_value());
  const ChangePosition before = scheduler().ReadChanges("", false)->position;
  ASSERT_TRUE(Rejoins(kAgent, job));
  EXPECT_FALSE(Rejoins(kAgent, job)) << "once";

  const JobRecord now = Get("a");
  EXPECT_EQ(now.state, JobState::kRunning);
  EXPECT_EQ(now.attempt, 1);
  EXPECT_EQ(now.losses, 0);
  EXPECT_EQ(now.avoid_node, "");
  EXPECT_FALSE(now.failure.has_value());
  EXPECT_EQ(StateOf(job), RankState::kRunning);
  EXPECT_EQ(fleet().FindRank(job.uid, 1, 0)->outcome, RankOutcome::kNone);
  EXPECT_EQ(fleet().ListAttempts(job.uid)->at(0).end_time, absl::InfinitePast());
  EXPECT_TRUE(fleet().ListNodes()->at(0).lost_ranks.empty());
  EXPECT_TRUE(fleet().ListNodes()->at(0).failures.empty()) << "nothing was lost";
  EXPECT_EQ(fleet().ReadDesired(InSession(kAgent))->size(), 1u);
  const auto changes = scheduler().ReadChanges(before, false);
  ASSERT_EQ(changes->attempts.size(), 1u) << "the leader is told";
  EXPECT_EQ(changes->attempts[0].ranks[0].state, RankState::kRunning);
  ASSERT_EQ(changes->nodes.size(), 1u);
  EXPECT_TRUE(changes->nodes[0].lost_ranks.empty());

  Step(job, 2);
  EXPECT_EQ(jobs().ReadMetrics(job.uid, {})->size(), 2u);
  Submit("b");
  EXPECT_EQ(Place(Get("b"), {"n1"}), 0) << "its slot is taken";
  Lose();
  EXPECT_EQ(Get("a").state, JobState::kQueued) << "it can be lost again";
  RegisterAs(kAgent);
  EXPECT_TRUE(*fleet().ReportAbsent(kAgent, {{job.uid, 1, 0}}));
  EXPECT_FALSE(Rejoins(kAgent, job)) << "what is gone stays gone";
  ExpectGaplessFeed(job.uid);
}

TEST_P(ClaimSuite, JobGoesOnForWhoeverRunsItAlone) {
  const JobRecord job = RunStepping("a");
  Lose();
  for (const AgentIdentity& other : {kOtherDirectory, kBootedAnew, kWiped, kElsewhere, kClone}) {
    EXPECT_FALSE(Rejoins(other, job)) << other.uid << " " << other.instance;
    Lose();
  }
  const std::string token = RunningRankOf(job).claim;
  EXPECT_TRUE(RegisterAs(kAgent, 4, {}).empty());
  EXPECT_TRUE(RegisterAs(kAgent, 4, {{{job.uid, 1, 0}, ""}}).empty());
  EXPECT_TRUE(
      RegisterAs(kAgent, 4, {{{job.uid, 1, 0}, "of another life of the database"}}).empty());
  EXPECT_TRUE(RegisterAs(kAgent, 4, {{{job.uid, 2, 0}, token}}).empty());
  EXPECT_TRUE(RegisterAs(kAgent, 4, {{{"nobody", 1, 0}, token}}).empty());
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_TRUE(Rejoins(kAgent, job));
}

TEST_P(ClaimSuite, JobDoesNotGoOnOnceSomethingElseWasMadeOfIt) {
  const JobRecord placed = RunStepping("placed");
  Submit("paused");
  ASSERT_EQ(Place(Get("paused"), {"n1"}, {1}), 1);
  const JobRecord paused = Get("paused");
  ASSERT_FALSE(fleet()
                   .AppendEvents({.agent = kAgent,
                                  .rank = {paused.uid, 1, 0},
                                  .events = Writer(paused).Restored(0).Take()})
                   ->fenced);
  Submit("young");
  ASSERT_EQ(Place(Get("young"), {"n1"}, {2}), 1);
  const JobRecord young = Get("young");
  Lose();
  RegisterAs(kAgent);
  ASSERT_EQ(Place(Get("placed"), {"n1"}, {3}), 1);
  EXPECT_FALSE(Rejoins(kAgent, placed)) << "its second attempt begins";
  ASSERT_OK(jobs().Pause({"default", "paused"}, 0, kUser, absl::Seconds(5)).status());
  EXPECT_FALSE(Rejoins(kAgent, paused));
  ASSERT_OK(jobs().Resume({"default", "paused"}, 0, kUser).status());
  EXPECT_TRUE(Rejoins(kAgent, paused));
  EXPECT_EQ(Get("paused").state, JobState::kRunning);
  EXPECT_FALSE(Rejoins(kAgent, young)) << "it had not begun";
}

// The user paused it before its node was lost: that is no loss of the job's, so none is undone.
TEST_P(ClaimSuite, LossThatWasNotCountedIsNotUndone) {
  const JobRecord job = RunStepping("a");
  Lose();
  ASSERT_TRUE(Rejoins(kAgent, job));
  Lose();
  ASSERT_EQ(Get("a").losses, 1);
  RegisterAs(kElsewhere);
  ASSERT_EQ(Place(Get("a"), {"n1"}), 1);
  RankEvents begun{.agent = kElsewhere, .rank = {job.uid, 2, 0}};
  begun.events = {{.sequence = 1, .time = absl::UnixEpoch(), .what = RankRestored{0}}};
  ASSERT_FALSE(fleet().AppendEvents(begun)->fenced);
  ASSERT_OK(jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(5)).status());
  Lose();
  ASSERT_OK(jobs().Resume({"default", "a"}, 0, kUser).status());
  ASSERT_EQ(Get("a").losses, 1);
  const std::string token = fleet().FindRank(job.uid, 2, 0)->claim.token;
  ASSERT_EQ(RegisterAs(kElsewhere, 4, {{{job.uid, 2, 0}, token}}).size(), 1u);
  EXPECT_EQ(Get("a").losses, 1);
}

TEST_P(ClaimSuite, GangGoesOnWhenAllOfItRuns) {
  RegisterAs(kAgent);
  Submit("a", 2);
  ASSERT_EQ(Place(Get("a"), {"n1", "n1"}, {0, 1}), 1);
  const JobRecord job = Get("a");
  for (int rank = 0; rank < 2; ++rank) {
    EventWriter& writer = Writer(job, rank).Restored(0);
    if (rank == 0) writer.Train(1);
    ASSERT_FALSE(
        fleet()
            .AppendEvents({.agent = kAgent, .rank = {job.uid, 1, rank}, .events = writer.Take()})
            ->fenced);
  }
  Lose();
  std::vector<RunningRank> running;
  const AttemptRecord attempt = fleet().ListAttempts(job.uid)->at(0);
  for (const RankRecord& rank : attempt.ranks) {
    running.push_back({rank.id, rank.claim.token});
  }
  EXPECT_TRUE(RegisterAs(kAgent, 4, {running[0]}).empty());
  EXPECT_TRUE(RegisterAs(kAgent, 4, {running[1]}).empty());
  EXPECT_EQ(RegisterAs(kAgent, 4, running).size(), 2u);
  EXPECT_EQ(Get("a").state, JobState::kRunning);
  EXPECT_EQ(fleet().ReadDesired(InSession(kAgent))->size(), 2u);
}

TEST_P(ClaimSuite, SessionWhoseLeaseIsOverHearsJustThat) {
  const JobRecord job = RunStepping("a");
  RankEvents report{
      .agent = InSession(kAgent), .rank = {job.uid, 1, 0}, .events = Writer(job).Train(2).Take()};
  Lose();
  EXPECT_EQ(fleet().ReadDesired(InSession(kAgent)).status().code(), absl::StatusCode::kAborted)
      << "an empty set would have it kill what the next session may name";
  EXPECT_TRUE(fleet().AppendEvents(report)->session_over);
  for (const auto& answer : fleet().AppendGroup({report, report})) {
    EXPECT_TRUE(answer->fenced);
    EXPECT_TRUE(answer->session_over);
  }
  RegisterAs(kAgent);
  EXPECT_TRUE(fleet().ReadDesired(InSession(kAgent))->empty());
  EXPECT_FALSE(fleet().AppendEvents(report)->session_over);
  EXPECT_FALSE(fleet().AppendGroup({report, report})[0]->session_over);
  EXPECT_TRUE(fleet().AppendEvents(report)->fenced);
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
  ASSERT_EQ(ListRanks(fleet(), "n1")->size(), 1u);
  const ChangePosition before = scheduler().ReadChanges("", false)->position;
  EXPECT_TRUE(*fleet().ReportAbsent(kAgent, *ListRanks(fleet(), "n1")));
  const auto changes = scheduler().ReadChanges(before, false);
  ASSERT_EQ(changes->nodes.size(), 1u) << "the leader is told";
  EXPECT_TRUE(changes->nodes[0].lost_ranks.empty());
  EXPECT_TRUE(ListRanks(fleet(), "n1")->empty());
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
