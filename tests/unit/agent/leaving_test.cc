// Ranks that are told to leave, and what they leave in memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>

#include "absl/time/clock.h"
#include "storage/base/file.h"
#include "tests/unit/agent/agent_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(AgentTest, SuspendedWorkerCheckpointsAndLeaves) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  server_.Want({Suspended(Assigned("a", "run"), 60'000)});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  EXPECT_EQ((*events)[events->size() - 2].finished().outcome(), v1::RankEvent::Finished::SUSPENDED);
  EXPECT_EQ(events->back().exited().exit_code(), 0);
}

TEST_F(AgentTest, WhatAnAttemptLeavesInMemoryIsReadByTheNextOne) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  server_.Want({Leaving(Assigned("a", "run"))});
  ASSERT_TRUE(server_.WaitForEnd("a.1.0"));

  const v1::Assignment next = GoingOn(2, 1);
  server_.Want({next});
  WaitForSteps("a.2.0");
  EXPECT_THAT(ReadFile(RankFolder("a.2.0") + "/log").value_or(""), HasSubstr("takes a.1.0\n"));
  server_.Want({Suspended(next, 60'000)});  // with a checkpoint
  ASSERT_TRUE(server_.WaitForEnd("a.2.0"));

  // Attempt 2 left nothing.
  server_.Want({GoingOn(3, 2)});
  WaitForSteps("a.3.0");
  EXPECT_THAT(ReadFile(RankFolder("a.3.0") + "/log").value_or("takes"), Not(HasSubstr("takes")));
}

TEST_F(AgentTest, ARankWhoseGangBrokeFailsAndLeavesItsStateAllTheSame) {
  StartAgent();
  server_.Want({Assigned("a", "alone")});
  ASSERT_TRUE(server_.WaitFor([&] {
    const auto& events = server_.EventsOf("a.1.0");
    return !events.empty() && events.back().has_failure();
  }));
  v1::Assignment leaving = Leaving(Assigned("a", "alone"));
  leaving.set_keep_state(v1::Assignment::ALONE);
  server_.Want({leaving});
  ASSERT_TRUE(server_.WaitForEnd("a.1.0"));
  server_.Want({GoingOn(2, 1)});
  WaitForSteps("a.2.0");
  EXPECT_THAT(ReadFile(RankFolder("a.2.0") + "/log").value_or(""), HasSubstr("takes a.1.0\n"));
}

TEST_F(AgentTest, ARankIsToldWhoIsLeftOnceThatIsKnown) {
  StartAgent();
  server_.Want({Assigned("a", "deaf")});
  WaitForSteps("a.1.0");
  v1::Assignment leaving = Leaving(Assigned("a", "deaf"));
  leaving.set_keep_state(v1::Assignment::ALONE);
  server_.Want({leaving});
  const auto told = [&](const std::string& wish) {
    return Eventually(
        [&] { return ReadFile(RankFolder("a.1.0") + "/keep-state").value_or("") == wish; });
  };
  EXPECT_TRUE(told("0 alone"));
  leaving.add_survivors(0);
  leaving.add_survivors(12);
  server_.Want({leaving});
  EXPECT_TRUE(told("0 alone 0,12"));
}

TEST_F(AgentTest, WhatIsInMemoryIsToldAndFreedWhenNobodyNeedsIt) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  server_.Want({Leaving(Assigned("a", "run"))});
  ASSERT_TRUE(server_.WaitForEnd("a.1.0"));
  v1::LeftState left;
  const auto tells = [&] {
    const std::optional<v1::Heartbeat>& heartbeat = server_.last_heartbeat();
    if (!heartbeat || heartbeat->left_states().empty()) return false;
    left = heartbeat->left_states(0);
    return true;
  };
  ASSERT_TRUE(server_.WaitFor(tells));
  EXPECT_EQ(left.job_uid(), "a");
  EXPECT_EQ(left.attempt(), 1);
  v1::LeftState other = left;
  other.set_attempt(2);
  server_.Free(other);
  server_.Want({GoingOn(2, 1)});
  WaitForSteps("a.2.0");
  EXPECT_THAT(ReadFile(RankFolder("a.2.0") + "/log").value_or(""), HasSubstr("takes a.1.0\n"));
  server_.Free(left);
  server_.Want({GoingOn(3, 1)});
  WaitForSteps("a.3.0");
  EXPECT_THAT(ReadFile(RankFolder("a.3.0") + "/log").value_or("takes"), Not(HasSubstr("takes")));
}

TEST_F(AgentTest, AnotherGraceCountsFromWhenItWasTold) {
  StartAgent();
  server_.Want({Assigned("a", "deaf")});
  WaitForSteps("a.1.0");
  server_.Want({Suspended(Assigned("a", "deaf"), 60'000)});
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({"a.1.0"}); }));
  const absl::Time told = absl::Now();
  server_.Want({Suspended(Assigned("a", "deaf"), 200)});
  server_.Want({Suspended(Assigned("a", "deaf"), 1200)});
  server_.Want({Suspended(Assigned("a", "deaf"), 1200), Assigned("b", "run")});
  ASSERT_TRUE(server_.WaitForEnd("a.1.0"));
  EXPECT_GE(absl::Now() - told, absl::Milliseconds(1200));
}

TEST_F(AgentTest, WhatIsPausedMeanwhileLeavesNothingInMemory) {
  StartAgent();
  server_.Want({Assigned("a", "deaf")});
  WaitForSteps("a.1.0");
  server_.Want({Leaving(Assigned("a", "deaf"))});
  const std::string wish = RankFolder("a.1.0") + "/keep-state";
  EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(wish); }));
  server_.Want({Suspended(Assigned("a", "deaf"), 60'000)});
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(wish); }));
}

// The next agent finds it by the process that it takes over.
TEST_F(AgentTest, AnAgentThatAdoptsAWorkerHasWhatItLeavesInMemory) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  StopAgent(SIGKILL);
  StartAgent();
  server_.Want({Leaving(Assigned("a", "run"))});
  ASSERT_TRUE(server_.WaitForEnd("a.1.0"));
  server_.Want({GoingOn(2, 1)});
  WaitForSteps("a.2.0");
  EXPECT_THAT(ReadFile(RankFolder("a.2.0") + "/log").value_or(""), HasSubstr("takes a.1.0\n"));
}

TEST_F(AgentTest, WorkerThatDoesNotSuspendInTimeIsKilled) {
  StartAgent();
  server_.Want({Assigned("a", "deaf")});
  WaitForSteps("a.1.0");
  server_.Want({Suspended(Assigned("a", "deaf"), 100)});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().signal(), SIGKILL);
}

TEST_F(AgentTest, RankThatIsSuspendedBeforeItStartsNeverRuns) {
  v1::Assignment assignment = Suspended(Assigned("a", "run"), 1000);
  assignment.mutable_restore()->set_step(40);
  server_.Want({assignment});
  StartAgent();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ASSERT_EQ(events->size(), 2u);
  EXPECT_EQ((*events)[0].finished().outcome(), v1::RankEvent::Finished::SUSPENDED);
  EXPECT_EQ((*events)[0].finished().step(), 40);
}

class GivingAwayTest : public AgentTest {
 protected:
  // The grace that the server was told of last, once it is less than `below`; -1: it was not told.
  int64_t WaitUntilTold(int64_t below = INT64_MAX) {
    int64_t told = -1;
    server_.WaitFor([&] {
      if (server_.leaving().has_value()) told = server_.leaving()->grace_ms();
      return told >= 0 && told < below;
    });
    return told;
  }
  // Sends SIGTERM to the agent, which goes on for as long as its grace.
  void Terminate() { kill(agent_, SIGTERM); }
};

TEST_F(GivingAwayTest, AnAgentWithoutWorkLeavesOnceTheServerKnows) {
  server_.Want({});
  StartAgent({"--leave-grace", "600"});
  ASSERT_TRUE(server_.WaitFor([this] { return server_.last_heartbeat().has_value(); }));
  EXPECT_EQ(StopAgent(SIGTERM), 0);
  const int64_t told = WaitUntilTold();
  EXPECT_GT(told, 590'000);
  EXPECT_LE(told, 600'000);
}

TEST_F(GivingAwayTest, WhatRunsGetsTheTimeToEndAndIsDeliveredFirst) {
  StartAgent({"--leave-grace", "600"});
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  Terminate();
  ASSERT_GE(WaitUntilTold(), 0);
  server_.Want({Suspended(Assigned("a", "run"), 60'000)});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ((*events)[events->size() - 2].finished().outcome(), v1::RankEvent::Finished::SUSPENDED);
  server_.Want({});
  EXPECT_EQ(WaitForAgent(), 0);
}

TEST_F(GivingAwayTest, WhatStillRunsAtTheEndOfTheGraceIsKilledAndReported) {
  StartAgent({"--leave-grace", "5"});
  server_.Want({Assigned("a", "deaf")});
  WaitForSteps("a.1.0");
  const absl::Time told = absl::Now();
  Terminate();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().exit_code(), 75);
  EXPECT_GE(absl::Now() - told, absl::Seconds(3));
  EXPECT_EQ(WaitForAgent(), 0);
}

TEST_F(GivingAwayTest, ASecondSignalEndsTheGrace) {
  StartAgent({"--leave-grace", "600"});
  server_.Want({Assigned("a", "deaf")});
  WaitForSteps("a.1.0");
  Terminate();
  ASSERT_GE(WaitUntilTold(), 0);
  EXPECT_EQ(StopAgent(SIGTERM), 0);
  EXPECT_TRUE(server_.WaitForEnd("a.1.0"));
}

TEST_F(GivingAwayTest, AServerThatTakesOverIsToldToo) {
  StartAgent({"--leave-grace", "600"});
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  Terminate();
  const int64_t before = WaitUntilTold();
  ASSERT_GE(before, 0);
  server_.Stop();
  server_.Start();
  EXPECT_LT(WaitUntilTold(before), before);
  server_.Want({});
  EXPECT_EQ(WaitForAgent(), 0);
}

}  // namespace
}  // namespace trainyard
