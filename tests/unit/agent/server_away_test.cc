// An agent whose server is away or begins anew: events, leases and what runs without one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "executor/run/run_directory.h"
#include "storage/base/clock.h"
#include "tests/unit/agent/agent_fixture.h"

namespace trainyard {
namespace {

TEST_F(AgentTest, ServerThatRestartsGetsEveryEventOnce) {
  StartAgent();
  server_.AckEvents(false);
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  server_.Stop();
  server_.AckEvents(true);
  server_.Start();
  ASSERT_TRUE(
      server_.WaitFor([&] { return server_.sessions().size() == 2 && server_.Runs({"a.1.0"}); }));
  std::ofstream(RankFolder("a.1.0") + "/go").flush();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  EXPECT_GT(server_.repeats(), 0) << "what was not acknowledged is sent again";
  EXPECT_FALSE(events->back().exited().lost());
}

TEST_F(AgentTest, NewSessionReportsNoSetOfTheOldOne) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({"a.1.0"}); }));
  server_.Stop();
  server_.SendSets(false);
  server_.Start();
  // The new server counts its sets from 1 again: what is absent under an old one proves nothing.
  ASSERT_TRUE(server_.WaitFor([&] { return server_.last_heartbeat().has_value(); }));
  EXPECT_TRUE(server_.WaitFor([&] {
    EXPECT_EQ(server_.last_heartbeat()->desired_version(), 0);
    EXPECT_EQ(server_.last_heartbeat()->present_size(), 1);
    return true;
  }));
}

TEST_F(AgentTest, BacklogOfManyEventsIsDeliveredInOrder) {
  StartAgent();
  server_.Want({Assigned("a", "many")});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  EXPECT_EQ(events->size(), 20'004u);
}

TEST_F(AgentTest, FencedRankIsKilledAndForgotten) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  server_.FenceEvents(true);
  EXPECT_TRUE(Eventually([&] { return !Lives(pid); }));
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({}); }));
}

TEST_F(AgentTest, AgentKillsItsWorkersWhenHeartbeatsAreNotAnswered) {
  v1::Welcome terms;
  terms.set_heartbeat_ms(50);
  terms.set_lease_ms(10'000);
  terms.set_self_fence_ms(1500);
  server_.SetTerms(terms);
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  server_.AckHeartbeats(false);
  const absl::Time silent = absl::Now();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events) << "events are delivered though the lease is lost";
  EXPECT_EQ(events->back().exited().exit_code(), run::kExitFenced);
  EXPECT_EQ(events->back().exited().signal(), 0) << "the loss of a lease is nobody's fault";
  EXPECT_FALSE(Lives(pid));
  EXPECT_GT(absl::Now() - silent, absl::Milliseconds(1000));
  EXPECT_LT(absl::Now() - silent, absl::Seconds(9)) << "before the lease ends";
  // Nothing starts without a lease; once the server answers again, it does.
  server_.Want({Assigned("b", "run")});
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({}); })) << "the set is reconciled";
  EXPECT_FALSE(std::filesystem::exists(RankFolder("b.1.0")));
  server_.AckHeartbeats(true);
  WaitForSteps("b.1.0");
}

TEST_F(AgentTest, WorkersStepOnWithoutALeaseAndTheServerDecides) {
  v1::Welcome terms;
  terms.set_heartbeat_ms(50);
  terms.set_lease_ms(1000);
  terms.set_self_fence_ms(800);
  terms.set_orphan_limit_ms(60'000);
  server_.SetTerms(terms);
  StartAgent();
  server_.Want({Assigned("kept", "run", {0}), Assigned("superseded", "run", {1})});
  const pid_t kept = WaitForSteps("kept.1.0");
  const pid_t superseded = WaitForSteps("superseded.1.0");
  const auto lease = run::LeaseFile::Open(RankFolder("kept.1.0") + "/lease", false);
  ASSERT_TRUE(lease.ok());
  const auto right_now = [&] { return lease->Right() > SystemClock().SinceBoot(); };
  EXPECT_TRUE(right_now());

  server_.SendSets(false);
  server_.Stop();
  const absl::Duration away = SystemClock().SinceBoot();
  ASSERT_TRUE(Eventually([&] { return SystemClock().SinceBoot() - away > absl::Seconds(3); }));
  EXPECT_TRUE(Lives(kept)) << "three leases long";
  EXPECT_TRUE(Lives(superseded));
  EXPECT_FALSE(right_now()) << "another attempt may have begun";
  StopAgent(SIGKILL);
  StartAgent();
  EXPECT_TRUE(Eventually([&] {
    return lease->Life() > SystemClock().SinceBoot() + absl::Milliseconds(500);
  })) << "an agent that starts meanwhile keeps them too";

  server_.Start();
  ASSERT_TRUE(server_.WaitFor([&] {  // a heartbeat of the new session, which has no set yet
    return server_.sessions().size() == 2 && server_.last_heartbeat()->desired_version() == 0;
  }));
  ASSERT_TRUE(server_.WaitFor([&] {
    EXPECT_TRUE(server_.sessions()[0].running().empty());
    EXPECT_EQ(server_.sessions()[1].running_size(), 2) << "what runs on is told";
    return true;
  }));
  EXPECT_FALSE(right_now()) << "a session alone gives no right";
  EXPECT_TRUE(Lives(superseded)) << "nothing is killed before the set is known";
  server_.SendSets(true);
  server_.Want({Assigned("kept", "run", {0})});
  EXPECT_TRUE(Eventually([&] { return !Lives(superseded); }));
  EXPECT_TRUE(Eventually(right_now));
  EXPECT_TRUE(Lives(kept));
}

TEST_F(AgentTest, OrphansAreKilledAtTheirLimit) {
  v1::Welcome terms;
  terms.set_heartbeat_ms(50);
  terms.set_lease_ms(3000);  // longer than this machine may keep the agent from its clock
  terms.set_self_fence_ms(500);
  terms.set_orphan_limit_ms(1500);
  server_.SetTerms(terms);
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  const absl::Duration away = SystemClock().SinceBoot();
  server_.Stop();
  ASSERT_TRUE(Eventually([&] { return !Lives(pid); }));
  EXPECT_GT(SystemClock().SinceBoot() - away, absl::Milliseconds(1500));
  server_.Start();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().exit_code(), run::kExitFenced);
}

TEST_F(AgentTest, KeepsItsIdentityAndACopyOfItsFolderIsAnother) {
  StartAgent();
  ASSERT_TRUE(server_.WaitFor([&] { return server_.sessions().size() == 1; }));
  StopAgent(SIGKILL);
  StartAgent();
  ASSERT_TRUE(server_.WaitFor([&] { return server_.sessions().size() == 2; }));
  StopAgent(SIGKILL);
  const std::string copy = folder_ + "/copy";
  std::filesystem::copy(state_, copy, std::filesystem::copy_options::recursive);
  state_ = copy;
  StartAgent();
  std::vector<v1::Register> sessions;
  ASSERT_TRUE(server_.WaitFor([&] {
    sessions = server_.sessions();
    return sessions.size() == 3;
  }));
  EXPECT_EQ(sessions[0].node_secret().size(), 64u);
  EXPECT_EQ(sessions[1].node_secret(), sessions[0].node_secret());
  EXPECT_EQ(sessions[1].instance(), sessions[0].instance());
  EXPECT_EQ(sessions[2].node_secret(), sessions[0].node_secret());
  EXPECT_NE(sessions[2].instance(), sessions[0].instance());
}

TEST_F(AgentTest, AdoptedWorkerThatIsKilledForTheLeaseSaysSoToo) {
  v1::Welcome terms;
  terms.set_heartbeat_ms(50);
  terms.set_lease_ms(10'000);
  terms.set_self_fence_ms(1500);
  server_.SetTerms(terms);
  StartAgent();
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  StopAgent(SIGKILL);
  StartAgent();
  ASSERT_TRUE(
      server_.WaitFor([&] { return server_.sessions().size() == 2 && server_.Runs({"a.1.0"}); }));
  server_.AckHeartbeats(false);
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().exit_code(), run::kExitFenced);
  EXPECT_FALSE(events->back().exited().lost());
}

TEST_F(AgentTest, WorkerWhoseLeaseEndedWithoutAnAgentIsNobodysFault) {
  v1::Welcome terms;
  terms.set_heartbeat_ms(50);
  terms.set_lease_ms(1000);
  terms.set_self_fence_ms(800);
  server_.SetTerms(terms);
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  StopAgent(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !Lives(pid); })) << "it ends itself";
  StartAgent();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().exit_code(), run::kExitFenced);
  EXPECT_FALSE(events->back().exited().lost());
}

TEST_F(AgentTest, WorkerOutlivesNeitherItsLeaseNorAStoppedAgent) {
  v1::Welcome terms;
  terms.set_heartbeat_ms(50);
  terms.set_lease_ms(1500);
  terms.set_self_fence_ms(1200);
  server_.SetTerms(terms);
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  const absl::Time start = absl::Now();
  ASSERT_TRUE(Eventually([&] { return absl::Now() - start > absl::Seconds(2); }));
  EXPECT_TRUE(Lives(pid)) << "heartbeats extend the lease";
  kill(agent_, SIGSTOP);
  EXPECT_TRUE(Eventually([&] { return !Lives(pid); }));
  kill(agent_, SIGCONT);
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  EXPECT_EQ(events->back().exited().exit_code(), run::kExitFenced);
}

}  // namespace
}  // namespace trainyard
