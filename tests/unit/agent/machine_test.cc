// What an agent tells of its machine: GPUs, disk, errors; and the workers that wait there.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "storage/base/file.h"
#include "tests/unit/agent/agent_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

}  // namespace
}  // namespace trainyard
