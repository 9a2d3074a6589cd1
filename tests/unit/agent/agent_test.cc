// A real agent process against a scripted server over real gRPC, with a worker that stands in for
// the real one.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/agent/process.h"
#include "executor/run/run_directory.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"
#include "tests/unit/agent/fake_server.h"
#include "tests/unit/run/scratch.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Assignment Assigned(const std::string& uid, const std::string& script, int slot = 0) {
  v1::Assignment assignment;
  assignment.mutable_key()->set_job_uid(uid);
  assignment.mutable_key()->set_attempt(1);
  assignment.set_job_name("projects/default/jobs/" + uid);
  assignment.set_world_size(1);
  assignment.add_slots(slot);
  assignment.set_rendezvous_secret(script);  // what the stand-in does
  assignment.set_wish(v1::Assignment::RUN);
  return assignment;
}

v1::Assignment Suspended(v1::Assignment assignment, int64_t grace_ms) {
  assignment.set_wish(v1::Assignment::SUSPEND);
  assignment.set_grace_ms(grace_ms);
  return assignment;
}

// To leave its state in memory.
v1::Assignment Leaving(const v1::Assignment& assignment) {
  v1::Assignment leaving = Suspended(assignment, 60'000);
  leaving.set_keep_state(v1::Assignment::HERE);
  return leaving;
}

// Attempt `attempt` of job a, from what attempt `kept` left in memory.
v1::Assignment GoingOn(int64_t attempt, int64_t kept) {
  v1::Assignment next = Assigned("a", "run");
  next.mutable_key()->set_attempt(attempt);
  next.mutable_kept()->set_attempt(kept);
  next.mutable_kept()->set_step(7);
  return next;
}

// Waits, without a wake-up to wait for, until `condition` holds.
bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

bool Lives(pid_t pid) {
  const auto text = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  return text.ok() && text->find(") Z ") == std::string::npos;
}

// Processes (zombies aside) that work in `folder` or below.
std::set<pid_t> ProcessesIn(const std::string& folder) {
  std::set<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    std::error_code error;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string cwd = std::filesystem::read_symlink(entry.path() / "cwd", error).string();
    if (!error && cwd.rfind(folder, 0) == 0 && Lives(pid)) pids.insert(pid);
  }
  return pids;
}

class AgentTest : public run::Scratch {
 protected:
  AgentTest() { EXPECT_TRUE(WriteFileAtomically(folder_ + "/token", "5ec7e7\n", 0600).ok()); }

  ~AgentTest() override {
    StopAgent(SIGKILL);
    server_.Stop();
    for (const pid_t pid : ProcessesIn(state_)) kill(pid, SIGKILL);
    if (HasFailure()) {
      std::cerr << "--- the agent said:\n"
                << ReadFile(folder_ + "/agent.log").value_or("") << "---\n";
    }
  }

  void StartAgent(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {AGENT,
                                          "--server",
                                          server_.address(),
                                          "--token-file",
                                          folder_ + "/token",
                                          "--node",
                                          "here",
                                          "--state-dir",
                                          state_,
                                          "--cpu-slots",
                                          "2",
                                          "--threads-per-slot",
                                          "3",
                                          "--worker",
                                          FAKE_WORKER,
                                          "--label",
                                          "rack=7"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string log = folder_ + "/agent.log";
    const pid_t parent = getpid();
    agent_ = fork();
    if (agent_ != 0) return;
    // A test that is killed takes its agent along; workers leave with their leases.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    if (!library_path_.empty()) setenv("LD_LIBRARY_PATH", library_path_.c_str(), 1);
    setenv("FAKE_XID", xid_file_.c_str(), 1);
    execv(AGENT, argv.data());
    _exit(127);
  }

  // Returns the exit code, or 128 + the signal.
  int StopAgent(int signal) {
    if (agent_ == 0) return -1;
    kill(agent_, signal);
    return WaitForAgent();
  }

  int WaitForAgent() {
    int status = 0;
    waitpid(std::exchange(agent_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // Waits for the rank's first metrics; returns its pid.
  pid_t WaitForSteps(const std::string& rank) {
    pid_t pid = 0;
    EXPECT_TRUE(server_.WaitFor([&] {
      const auto& events = server_.EventsOf(rank);
      if (events.size() < 3) return false;
      pid = static_cast<pid_t>(events[0].started().pid());
      return true;
    }));
    return pid;
  }

  void ExpectConsecutive(const std::vector<v1::RankEvent>& events) {
    for (size_t i = 0; i < events.size(); ++i) {
      ASSERT_EQ(events[i].sequence(), static_cast<int64_t>(i) + 1);
    }
    EXPECT_TRUE(server_.WaitFor([&] { return server_.gaps() == 0; }));
  }

  // The worker that waits, by what it wrote into its log; 0 while there is none.
  pid_t WaitingWorker() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(state_ + "/standby", error)) {
      const std::string text = ReadFile(entry.path() / "log").value_or("");
      pid_t pid = 0;
      if (sscanf(text.c_str(), "waiting as %d", &pid) == 1 && Lives(pid)) return pid;
    }
    return 0;
  }

  // The workers that wait: pid by what it was told, "--device cuda:1 --threads 3".
  std::map<std::string, pid_t> WaitingWorkers() {
    std::map<std::string, pid_t> waiting;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(state_ + "/standby", error)) {
      const std::string text = ReadFile(entry.path() / "log").value_or("");
      pid_t pid = 0;
      int end = 0;
      if (sscanf(text.c_str(), "waiting as %d %n", &pid, &end) == 1 && Lives(pid)) {
        waiting[text.substr(end, text.find('\n') - end)] = pid;
      }
    }
    return waiting;
  }

  // A driver with two GPUs for agents that start from now on.
  void InstallDriver() {
    std::filesystem::create_directories(folder_ + "/lib");
    std::filesystem::create_symlink(FAKE_NVML, folder_ + "/lib/libnvidia-ml.so.1");
    library_path_ = folder_ + "/lib";
  }

  // Of GPU 1; returns when the agent knows.
  void ReportXid(int code) {
    ASSERT_TRUE(WriteFileAtomically(xid_file_, absl::StrCat(code), 0600).ok());
    ASSERT_TRUE(server_.WaitFor([&] {
      const auto& heartbeat = server_.last_heartbeat();
      return heartbeat && heartbeat->usage_size() == 2 &&
             heartbeat->usage().at(1).last_xid() == code;
    }));
  }

  std::string RankFolder(const std::string& rank) const { return state_ + "/ranks/" + rank; }

  std::string state_ = folder_ + "/state";
  const std::string xid_file_ = folder_ + "/xid";
  FakeServer server_;
  std::string library_path_;
  pid_t agent_ = 0;
};

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

TEST_F(AgentTest, TellsWhatItsGpusDo) {
  InstallDriver();
  StartAgent();
  ASSERT_TRUE(server_.WaitFor([&] {
    const auto& heartbeat = server_.last_heartbeat();
    return heartbeat && heartbeat->usage_size() == 2 && heartbeat->usage().at(1).last_xid() == 79;
  }));
  ASSERT_TRUE(server_.WaitFor([&] {
    const v1::Register& hello = server_.sessions().at(0);
    EXPECT_EQ(hello.slots_size(), 4);  // and two CPU slots
    EXPECT_EQ(hello.slots(1).device(), v1::Resources::CUDA);
    EXPECT_EQ(hello.slots(1).model(), "Fake GPU 1");
    EXPECT_EQ(server_.last_heartbeat()->usage().at(1).utilization(), 0.75);
    return true;
  }));
}

TEST_F(AgentTest, TellsOfItsMachineAndItsErrors) {
  StartAgent();
  ASSERT_TRUE(server_.WaitFor([&] { return server_.last_heartbeat().has_value(); }));
  ASSERT_TRUE(server_.WaitFor([&] {
    const v1::NodeHealth& health = server_.last_heartbeat()->health();
    EXPECT_GT(health.disk_total_bytes(), health.disk_free_bytes());
    EXPECT_EQ(health.state_dir(), state_);
    EXPECT_GT(health.memory_total_bytes(), health.memory_free_bytes());
    EXPECT_GT(health.memory_free_bytes(), 0);
    EXPECT_EQ(health.failed_starts(), 0);
    return true;
  }));
  std::ofstream(RankFolder("a.1.0")) << "in the way";
  server_.Want({Assigned("a", "run")});
  EXPECT_TRUE(
      server_.WaitFor([&] { return server_.last_heartbeat()->health().failed_starts() > 0; }));
}

// Its disk has no room for the end: the space that was kept for it has.
TEST_F(AgentTest, RankOnAFullDiskTellsItsEndAndTheFolder) {
  std::filesystem::create_directories(state_);
  if (mount("tmpfs", state_.c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "a tmpfs cannot be mounted here: " << strerror(errno);
  }
  const absl::Cleanup unmount = [this] { umount2(state_.c_str(), MNT_DETACH); };
  StartAgent({"--standby", "0"});
  server_.Want({Assigned("a", "run")});
  WaitForSteps("a.1.0");
  {
    const FileDescriptor filler(open((state_ + "/filler").c_str(), O_WRONLY | O_CREAT, 0600));
    for (const size_t size : {size_t{1} << 16, size_t{4096}, size_t{1}}) {
      const std::string piece(size, 'x');
      while (write(filler.get(), piece.data(), size) > 0) {
      }
    }
  }
  // The worker meets it with its next events, and leaves.
  const auto events = server_.WaitForEnd("a.1.0");
  ASSERT_TRUE(events);
  ExpectConsecutive(*events);
  const v1::Failure& failure = events->at(events->size() - 2).failure();
  EXPECT_EQ(failure.category(), v1::Failure::STORAGE);
  EXPECT_TRUE(failure.retryable());
  EXPECT_THAT(failure.message(), HasSubstr("free in " + state_ + "/ranks"));
  EXPECT_FALSE(std::filesystem::exists(RankFolder("a.1.0") + "/reserve"));
  // Nothing new is started there, nor does it harm the agent.
  server_.Want({Assigned("b", "run")});
  ASSERT_TRUE(
      server_.WaitFor([&] { return server_.last_heartbeat()->health().failed_starts() > 0; }));
  std::filesystem::remove(state_ + "/filler");
  server_.Want({Assigned("c", "run")});
  WaitForSteps("c.1.0");
  StopAgent(SIGKILL);
  for (const pid_t left : ProcessesIn(state_)) kill(left, SIGKILL);
}

TEST_F(AgentTest, WhatTheDriverReportsIsToldWithTheFailure) {
  InstallDriver();
  StartAgent();
  server_.Want({Assigned("a", "fault", 1), Assigned("b", "fault", 0), Assigned("c", "run", 2)});
  WaitForSteps("a.1.0");
  WaitForSteps("b.1.0");
  ReportXid(31);
  for (const char* const rank : {"a.1.0", "b.1.0"}) {
    ASSERT_TRUE(WriteFileAtomically(RankFolder(rank) + "/go", "", 0600).ok());
  }
  const auto a = server_.WaitForEnd("a.1.0");
  const auto b = server_.WaitForEnd("b.1.0");
  ASSERT_TRUE(a && b);
  EXPECT_EQ((*a)[a->size() - 2].failure().message(),
            "an illegal address; the driver reported Xid 31 (an access to memory that is not "
            "mapped) of GPU 1");
  EXPECT_EQ((*b)[b->size() - 2].failure().message(), "an illegal address") << "of another GPU";

  server_.Want({Assigned("c", "run", 2), Assigned("d", "run", 1)});
  kill(WaitForSteps("c.1.0"), SIGKILL);
  const pid_t d = WaitForSteps("d.1.0");
  ReportXid(48);
  kill(d, SIGKILL);
  const auto c_end = server_.WaitForEnd("c.1.0");
  const auto d_end = server_.WaitForEnd("d.1.0");
  ASSERT_TRUE(c_end && d_end);
  EXPECT_THAT(
      d_end->back().exited().evidence(),
      HasSubstr("the driver reported Xid 48 (an uncorrectable error of its memory) of GPU 1"));
  EXPECT_THAT(c_end->back().exited().evidence(), Not(HasSubstr("Xid"))) << "of a CPU";
}

// While a rank runs on a GPU nobody waits there.
TEST_F(AgentTest, AWorkerWaitsOnEachIdleGpu) {
  const std::string cpu, first = "--device cuda:0 --threads 3",
                         second = "--device cuda:1 --threads 3";
  InstallDriver();
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return WaitingWorkers().size() == 3; }));
  const std::map<std::string, pid_t> before = WaitingWorkers();
  server_.Want({Assigned("a", "run", 1)});
  EXPECT_EQ(WaitForSteps("a.1.0"), before.at(second));
  EXPECT_TRUE(Eventually([&] {
    const auto now = WaitingWorkers();
    return now.size() == 2 && now.contains(first) && now.contains(cpu);
  }));
  server_.Want({});
  ASSERT_TRUE(server_.WaitForEnd("a.1.0"));
  EXPECT_TRUE(Eventually([&] { return WaitingWorkers().contains(second); }));

  v1::Assignment both = Assigned("b", "run", 0);
  both.add_slots(1);
  const pid_t on_second = WaitingWorkers().at(second);
  server_.Want({both});
  EXPECT_EQ(WaitForSteps("b.1.0"), before.at(first));
  EXPECT_TRUE(Eventually([&] { return !Lives(on_second); }));
}

TEST_F(AgentTest, NobodyWaitsOnGpusWhereThatIsNotWished) {
  InstallDriver();
  StartAgent({"--no-standby-gpus"});
  ASSERT_TRUE(Eventually([&] { return WaitingWorkers().size() == 1; }));
  server_.Want({Assigned("a", "run", 1)});
  WaitForSteps("a.1.0");
  EXPECT_TRUE(WaitingWorkers().empty() || WaitingWorkers().begin()->first.empty());
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
  terms.set_lease_ms(600);
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
