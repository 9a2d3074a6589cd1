// An agent, the ranks that it runs, and the workers that wait for some.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/run/run_directory.h"
#include "storage/base/file.h"
#include "tests/unit/agent/agent_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

TEST_F(AgentTest, AgentOfAKilledTestGoesWithIt) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor read_end(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const pid_t test = fork();
  if (test == 0) {
    StartAgent();
    if (write(write_end.get(), &agent_, sizeof(agent_)) != sizeof(agent_)) _exit(1);
    for (;;) pause();
  }
  pid_t agent = 0;
  ASSERT_EQ(read(read_end.get(), &agent, sizeof(agent)), static_cast<ssize_t>(sizeof(agent)));
  EXPECT_TRUE(server_.WaitFor([&] { return server_.Runs({}); }));
  kill(test, SIGKILL);
  ASSERT_EQ(waitpid(test, nullptr, 0), test);
  EXPECT_TRUE(Eventually([&] { return !Lives(agent); }));
}

TEST_F(AgentTest, RegistersWithSlotsLabelsAndToken) {
  StartAgent();
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({}); }));
  ASSERT_TRUE(server_.WaitFor([&] {
    const v1::Register& hello = server_.sessions().at(0);
    EXPECT_EQ(hello.node(), "here");
    EXPECT_EQ(hello.slots_size(), 2);
    EXPECT_EQ(hello.slots(0).cpu_threads(), 3);
    EXPECT_GT(hello.slots(0).memory_bytes(), 1 << 20);
    for (const v1::Slot& slot : hello.slots()) {
      EXPECT_EQ(slot.arithmetic().values().at("device"), "cpu");
      EXPECT_EQ(slot.arithmetic().values().at("loops"), "none");
    }
    EXPECT_EQ(hello.labels().at("rack"), "7");
    EXPECT_EQ(hello.incarnation().size(), 32u);
    EXPECT_EQ(hello.protocol_version(), 1);
    EXPECT_EQ(server_.last_token(), "Bearer 5ec7e7");
    return true;
  }));
}

TEST_F(AgentTest, TurnsToAnotherServerWhenItsOwnIsAway) {
  FakeServer other;
  StartAgent({"--server", absl::StrCat(other.address(), ",127.0.0.1:1")});
  const auto sessions = [](FakeServer& server) {
    size_t count = 0;
    server.WaitFor([&] {
      count = server.sessions().size();
      return true;
    });
    return count;
  };
  other.Stop();
  EXPECT_TRUE(Eventually([&] { return sessions(server_) > 0; }));
  other.Start();
  const size_t before = sessions(other);
  server_.Stop();
  EXPECT_TRUE(Eventually([&] { return sessions(other) > before; }));
}

TEST_F(AgentTest, AddressThatCannotBeOneIsRefusedWithWords) {
  StartAgent({"--server", "localhost:99999"});
  int status = 0;
  ASSERT_EQ(waitpid(agent_, &status, 0), agent_);
  agent_ = 0;
  EXPECT_EQ(WEXITSTATUS(status), 64);
  EXPECT_THAT(ReadFile(folder_ + "/agent.log").value_or(""),
              ::testing::HasSubstr("server 'localhost:99999': the port is '99999'"));
}

TEST_F(AgentTest, RunsWhatIsWantedAndDeliversItsEventsInOrder) {
  server_.Want({Assigned("a", "finish")});
  StartAgent();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  ASSERT_EQ(events->size(), 7u);
  EXPECT_EQ((*events)[0].started().device(), "cpu x3");
  EXPECT_EQ((*events)[4].metrics().step(), 3);
  EXPECT_EQ((*events)[5].finished().outcome(), v1::RankEvent::Finished::SUCCEEDED);
  EXPECT_EQ((*events)[6].exited().exit_code(), 0);
  EXPECT_FALSE((*events)[6].exited().lost());
  EXPECT_TRUE(server_.WaitFor([&] { return server_.Runs({}); }))
      << "what ended is not present, though it is wanted still";
  EXPECT_TRUE(server_.WaitFor([&] { return server_.columns() == 0; }))
      << "a server that does not say that it takes columns is one of before";
}

TEST_F(AgentTest, AServerThatTakesColumnsGetsThemAndTheSameEvents) {
  v1::Welcome terms;
  terms.set_heartbeat_ms(50);
  terms.set_lease_ms(30'000);
  terms.set_self_fence_ms(25'000);
  terms.set_metric_columns(true);
  server_.SetTerms(terms);
  server_.Want({Assigned("a", "finish")});
  StartAgent();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  ASSERT_EQ(events->size(), 7u);
  for (int step = 1; step <= 3; ++step) {
    EXPECT_EQ((*events)[step + 1].metrics().step(), step);
    EXPECT_FALSE((*events)[step + 1].metrics().values().empty());
  }
  EXPECT_TRUE(server_.WaitFor([&] { return server_.columns() > 0; }));
}

TEST_F(AgentTest, WhatIsNoLongerWantedIsKilledAndProvenGone) {
  StartAgent();
  server_.Want({Assigned("a", "run", 0), Assigned("b", "run", 1)});
  const pid_t a = WaitForSteps("a.1.0");
  const pid_t b = WaitForSteps("b.1.0");
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({"a.1.0", "b.1.0"}); }));
  server_.Want({Assigned("b", "run", 1)});
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({"b.1.0"}); }));
  EXPECT_FALSE(Lives(a));
  EXPECT_TRUE(Lives(b));
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  EXPECT_EQ(events->back().exited().signal(), SIGKILL);
  EXPECT_TRUE(events->back().exited().killed());
}

TEST_F(AgentTest, WorkerThatSomebodyElseKillsIsToldApart) {
  StartAgent();
  server_.Want({Assigned("a", "run", 0)});
  ASSERT_EQ(kill(WaitForSteps("a.1.0"), SIGKILL), 0);
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().signal(), SIGKILL);
  ASSERT_TRUE(events->back().exited().has_killed());
  EXPECT_FALSE(events->back().exited().killed());
}

TEST_F(AgentTest, SlotIsTakenAgainOnlyWhenItsWorkerIsGone) {
  StartAgent();
  server_.Want({Assigned("a", "children")});
  ASSERT_TRUE(server_.WaitForEnd("a.1.0"));
  server_.Want({Assigned("a", "run", 0)});
  server_.Want({Assigned("b", "run", 0)});
  WaitForSteps("b.1.0");
  EXPECT_EQ(ProcessesIn(RankFolder("a.1.0")).size(), 0u);
}

TEST_F(AgentTest, CrashIsReportedWithItsLastWords) {
  StartAgent();
  server_.Want({Assigned("a", "crash")});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().signal(), SIGABRT);
  EXPECT_THAT(events->back().exited().evidence(), HasSubstr("the tensor is on fire\n"));
}

TEST_F(AgentTest, ProcessesThatAWorkerStartedGoWithIt) {
  StartAgent({"--standby", "0"});
  server_.Want({Assigned("a", "children")});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().exit_code(), 3);
  EXPECT_TRUE(Eventually([&] { return ProcessesIn(state_).empty(); }));
}

TEST_F(AgentTest, AssignmentThatCannotRunHereIsRefusedWithAReason) {
  StartAgent();
  server_.Want({Assigned("a", "run", 9)});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_THAT((*events)[0].failure().message(), HasSubstr("no slot 9"));
  EXPECT_TRUE((*events)[0].failure().retryable());
}

TEST_F(AgentTest, KeyThatLeadsOutOfTheStateDirectoryIsIgnored) {
  StartAgent();
  server_.Want({Assigned("../../x", "run"), Assigned("b", "run", 1)});
  WaitForSteps("b.1.0");
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({"b.1.0"}); }));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/x.1.0"));
}

TEST_F(AgentTest, RestartedAgentAdoptsItsWorkers) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  StopAgent(SIGKILL);
  ASSERT_TRUE(Lives(pid));
  StartAgent();
  ASSERT_TRUE(
      server_.WaitFor([&] { return server_.sessions().size() == 2 && server_.Runs({"a.1.0"}); }));
  EXPECT_TRUE(Lives(pid));
  EXPECT_NE(server_.sessions()[0].incarnation(), server_.sessions()[1].incarnation());
  size_t before = 0;
  server_.WaitFor([&] { return (before = server_.EventsOf("a.1.0").size()) > 0; });
  ASSERT_TRUE(server_.WaitFor([&] { return server_.EventsOf("a.1.0").size() > before + 5; }));
  server_.Want({});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  EXPECT_TRUE(events->back().exited().lost()) << "whoever is not its parent cannot know its status";
  EXPECT_FALSE(Lives(pid));
}

TEST_F(AgentTest, RankThatEndedWithoutAnAgentIsNotStartedAgain) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  StopAgent(SIGKILL);
  std::ofstream(RankFolder("a.1.0") + "/go").flush();
  ASSERT_TRUE(Eventually([&] { return !Lives(pid); }));
  StartAgent();
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  EXPECT_EQ((*events)[events->size() - 2].finished().outcome(), v1::RankEvent::Finished::SUCCEEDED);
  EXPECT_TRUE(events->back().exited().lost());
  int starts = 0;
  for (const v1::RankEvent& event : *events) starts += event.has_started() ? 1 : 0;
  EXPECT_EQ(starts, 1);
}

TEST_F(AgentTest, FinishedRankIsNotForgottenBeforeTheSetIsKnown) {
  StartAgent();
  server_.Want({Assigned("a", "finish")});
  ASSERT_TRUE(server_.WaitForEnd("a.1.0"));
  const std::string mark = RankFolder("a.1.0") + "/acked";
  ASSERT_TRUE(
      Eventually([&] { return ReadFile(mark).value_or("").find("done") != std::string::npos; }));
  StopAgent(SIGTERM);
  const timespec long_ago[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, mark.c_str(), long_ago, 0), 0);
  // The next agent cleans up when it starts, and learns only later what is wanted still.
  StartAgent();
  ASSERT_TRUE(server_.WaitFor([&] { return server_.sessions().size() == 2 && server_.Runs({}); }));
  EXPECT_TRUE(std::filesystem::exists(RankFolder("a.1.0")));
  EXPECT_EQ(server_.WaitForEnd("a.1.0")->size(), 7u) << "it ran once";
  StopAgent(SIGTERM);
  server_.Want({});
  StartAgent();
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(RankFolder("a.1.0")); }))
      << "nobody asks for it any more";
}

TEST_F(AgentTest, RankWhoseFolderIsRemovedStillTellsItsEnd) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  std::filesystem::remove_all(RankFolder("a.1.0"));
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_FALSE(Lives(pid));
  EXPECT_EQ(events->back().exited().exit_code(), run::kExitFenced);
  ExpectConsecutive(*events);
}

TEST_F(AgentTest, RankThatCannotEvenBeRefusedIsTriedAgainAtAPace) {
  StartAgent({"--standby", "0"});
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({}); }));
  std::ofstream(RankFolder("a.1.0")) << "in the way";
  server_.Want({Assigned("a", "run")});
  const auto refusals = [&] {
    const std::string log = ReadFile(folder_ + "/agent.log").value_or("");
    int count = 0;
    for (size_t at = 0; (at = log.find("cannot be refused", at)) != std::string::npos; ++at) {
      ++count;
    }
    return count;
  };
  ASSERT_TRUE(Eventually([&] { return refusals() > 0; }));
  const absl::Time first = absl::Now();
  ASSERT_TRUE(Eventually([&] { return refusals() > 2; }));
  EXPECT_GT(absl::Now() - first, absl::Seconds(1.5)) << "each try costs a worker";
  std::filesystem::remove(RankFolder("a.1.0"));
  WaitForSteps("a.1.0");
}

TEST_F(AgentTest, EndIsToldByTheAgentAloneAndOnlyOnceNothingRuns) {
  StartAgent();
  server_.Want({Assigned("a", "forge")});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_FALSE(Lives(static_cast<pid_t>((*events)[0].started().pid())));
}

TEST_F(AgentTest, WaitingWorkerTakesTheRankAndIsReplaced) {
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return WaitingWorker() != 0; }));
  const pid_t waiting = WaitingWorker();
  server_.Want({Assigned("a", "run")});
  EXPECT_EQ(WaitForSteps("a.1.0"), waiting);
  EXPECT_TRUE(Eventually([&] { return WaitingWorker() != 0 && WaitingWorker() != waiting; }));
  EXPECT_EQ(std::filesystem::read_symlink(absl::StrCat("/proc/", waiting, "/cwd")).string(),
            RankFolder("a.1.0"));
}

TEST_F(AgentTest, WithoutAWaitingWorkerOneIsStartedCold) {
  StartAgent({"--standby", "0"});
  server_.Want({Assigned("a", "run", 0), Assigned("b", "run", 1)});
  WaitForSteps("a.1.0");
  WaitForSteps("b.1.0");
  EXPECT_EQ(WaitingWorker(), 0);
}

TEST_F(AgentTest, WaitingWorkerThatDiesIsReplaced) {
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return WaitingWorker() != 0; }));
  const pid_t first = WaitingWorker();
  kill(first, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !Lives(first); }));
  EXPECT_TRUE(Eventually([&] { return WaitingWorker() != 0; }));
}

TEST_F(AgentTest, WaitingWorkerGoesWithTheAgentAndARunningOneStays) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t running = WaitForSteps("a.1.0");
  ASSERT_TRUE(Eventually([&] { return WaitingWorker() != 0; }));
  const pid_t waiting = WaitingWorker();
  StopAgent(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !Lives(waiting); }));
  EXPECT_TRUE(Lives(running));
}

TEST_F(AgentTest, TerminatedAgentLeavesItsWorkersRunning) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  EXPECT_EQ(StopAgent(SIGTERM), 0);
  EXPECT_TRUE(Lives(pid));
}

TEST_F(AgentTest, InterruptedAgentKillsEverythingAndSaysSo) {
  StartAgent();
  server_.Want({Assigned("a", "run"), Assigned("b", "children", 1)});
  WaitForSteps("a.1.0");
  EXPECT_EQ(StopAgent(SIGINT), 0);
  EXPECT_TRUE(Eventually([&] { return ProcessesIn(state_).empty(); }));
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->back().exited().exit_code(), run::kExitFenced) << "no failure of the job";
}

TEST_F(AgentTest, FlagMakesTerminationKillTheWorkersToo) {
  StartAgent({"--kill-workers-on-exit"});
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  EXPECT_EQ(StopAgent(SIGTERM), 0);
  EXPECT_TRUE(ProcessesIn(state_).empty());
}

TEST_F(AgentTest, SecondAgentOfOneStateDirectoryIsRefused) {
  StartAgent();
  ASSERT_TRUE(server_.WaitFor([&] { return server_.Runs({}); }));
  const pid_t first = std::exchange(agent_, 0);
  StartAgent();
  EXPECT_EQ(WaitForAgent(), 70);
  agent_ = first;
}

TEST_F(AgentTest, LogIsServedFromAnyPlace) {
  StartAgent();
  server_.Want({Assigned("a", "print")});
  WaitForSteps("a.1.0");
  const v1::RankKey key = Assigned("a", "print").key();
  const v1::LogChunk all = server_.AskForLog(key, 0, 1 << 20);
  EXPECT_EQ(all.error(), "");
  EXPECT_EQ(all.offset(), 0);
  EXPECT_FALSE(all.end()) << "it runs still";
  EXPECT_THAT(all.data(), HasSubstr("line 0\nline 1\n"));
  const auto size = static_cast<int64_t>(all.data().size());
  const v1::LogChunk tail = server_.AskForLog(key, -10, 1 << 20);
  EXPECT_EQ(tail.offset(), size - 10);
  EXPECT_EQ(tail.data(), all.data().substr(size - 10));
  const v1::LogChunk middle = server_.AskForLog(key, 20, 30);
  EXPECT_EQ(middle.data(), all.data().substr(20, 30));
  const v1::LogChunk past = server_.AskForLog(key, size + 100, 10);
  EXPECT_EQ(past.offset(), size);
  EXPECT_EQ(past.data(), "");

  server_.Want({});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_THAT(events->back().exited().evidence(), HasSubstr("line 999\ncaf\xC3\xA9 ??\n"));
  EXPECT_TRUE(server_.AskForLog(key, size - 5, 100).end());
  EXPECT_THAT(server_.AskForLog(Assigned("x", "").key(), 0, 10).error(),
              HasSubstr("no log of rank"));
}

TEST_F(AgentTest, BrokenWorkerProgramIsReported) {
  StartAgent({"--worker", "/bin/false"});
  server_.Want({Assigned("a", "run")});
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  EXPECT_TRUE(events->back().exited().exit_code() == 1 || (*events)[0].has_failure());
}

TEST_F(AgentTest, MissingWorkerProgramIsToldAtOnce) {
  StartAgent({"--worker", folder_ + "/nothing"});
  EXPECT_EQ(WaitForAgent(), 70);
}

TEST_F(AgentTest, DamagedEventLogEndsTheRank) {
  StartAgent();
  server_.Want({Assigned("a", "run")});
  const pid_t pid = WaitForSteps("a.1.0");
  StopAgent(SIGKILL);
  const std::string path = RankFolder("a.1.0") + "/events.log";
  const FileDescriptor fd(open(path.c_str(), O_WRONLY));
  ASSERT_EQ(pwrite(fd.get(), "\xFF\xFF\xFF\xFF", 4, 0), 4);
  // Read from the beginning, where the damage is.
  unlink((RankFolder("a.1.0") + "/acked").c_str());
  StartAgent();
  EXPECT_TRUE(Eventually([&] { return !Lives(pid); }));
  ASSERT_TRUE(server_.WaitFor([&] { return server_.sessions().size() == 2 && server_.Runs({}); }));
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  const v1::Failure& failure = (*events)[events->size() - 2].failure();
  EXPECT_EQ(failure.category(), v1::Failure::STORAGE);
  EXPECT_THAT(failure.message(), HasSubstr("is damaged"));
}

}  // namespace
}  // namespace trainyard
