#include "executor/agent/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/run/scratch.h"

namespace trainyard {
namespace {

class ProcessTest : public run::Scratch {
 protected:
  absl::StatusOr<Process> Shell(const std::string& script) {
    const FileDescriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
    return Process::Spawn({.program = "/bin/sh",
                           .arguments = {"-c", script},
                           .environment = {"PATH=/usr/bin:/bin", "COLOUR=blue"},
                           .folder = folder_,
                           .stdin_fd = null.get(),
                           .output_path = folder_ + "/out"});
  }

  static std::optional<ExitStatus> Reap(Process& process) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (absl::Now() < deadline) {
      const std::optional<ExitStatus> status = process.TryReap();
      if (status) return status;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return std::nullopt;
  }

  std::string Output() { return ReadFile(folder_ + "/out").value_or(""); }
  bool WaitForOutput(const std::string& text) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (Output().find(text) == std::string::npos) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }
};

TEST_F(ProcessTest, RunsInItsFolderWithItsEnvironmentAndNothingElse) {
  const FileDescriptor secret(open("/dev/null", O_RDONLY));  // without O_CLOEXEC
  auto process = Shell("pwd; env | sort; ls /proc/self/fd | wc -l; ulimit -c >/dev/null; exit 7");
  ASSERT_TRUE(process.ok()) << process.status();
  const auto status = Reap(*process);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code, 7);
  EXPECT_EQ(status->signal, 0);
  // Descriptors 0, 1, 2 and the one that ls opens.
  EXPECT_EQ(Output(),
            absl::StrCat(folder_, "\nCOLOUR=blue\nPATH=/usr/bin:/bin\nPWD=", folder_, "\n4\n"));
}

TEST_F(ProcessTest, IgnoredAndBlockedSignalsAreNotInherited) {
  signal(SIGPIPE, SIG_IGN);
  auto process = Shell("kill -PIPE $$; sleep 100");
  ASSERT_TRUE(process.ok());
  const auto status = Reap(*process);
  signal(SIGPIPE, SIG_DFL);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->signal, SIGPIPE);
}

TEST_F(ProcessTest, MissingProgramIsTold) {
  EXPECT_EQ(Process::Spawn({.program = "/no/such/program",
                            .folder = folder_,
                            .stdin_fd = 0,
                            .output_path = folder_ + "/out"})
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

// What kills it is not whoever kills it then, too.
TEST_F(ProcessTest, EndsOnceOthersCanSeeThat) {
  for (int i = 0; i < 50; ++i) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const FileDescriptor write_end(ends[1]);
    FileDescriptor read_end(ends[0]);
    auto process = Process::Spawn({.program = "/bin/sleep",
                                   .arguments = {"100"},
                                   .folder = folder_,
                                   .stdin_fd = read_end.get(),
                                   .output_path = folder_ + "/out"});
    ASSERT_TRUE(process.ok()) << process.status();
    read_end.Reset(-1);
    EXPECT_FALSE(process->Ends());
    ASSERT_EQ(kill(process->id().pid, SIGKILL), 0);
    pollfd gone{.fd = write_end.get(), .events = 0};  // POLLERR: nobody reads any more
    ASSERT_EQ(poll(&gone, 1, 20'000), 1);
    EXPECT_TRUE(process->Ends());
    EXPECT_TRUE(Reap(*process));
  }
}

TEST_F(ProcessTest, GroupDiesWithItsLeader) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  auto process = Shell("(trap '' TERM; sleep 1000 & echo child $!; wait) & sleep 0.05; exit 3");
  ASSERT_TRUE(process.ok());
  const auto status = Reap(*process);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code, 3);
  int child = 0;
  ASSERT_EQ(sscanf(Output().c_str(), "child %d", &child), 1);
  EXPECT_TRUE(absl::IsNotFound(IdentifyProcess(child).status()));
  EXPECT_EQ(kill(-process->id().pid, 0), -1);
}

TEST_F(ProcessTest, KilledGroupIsProvenGone) {
  auto process = Shell("echo here; sleep 1000");
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(WaitForOutput("here"));
  EXPECT_FALSE(process->TryReap());
  process->KillGroup();
  const auto status = Reap(*process);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->signal, SIGKILL);
}

TEST_F(ProcessTest, ProcessOfAnotherParentCanBeAdoptedWatchedAndKilled) {
  auto process = Shell("sleep 1000 & echo $!; wait");
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(WaitForOutput("\n"));
  const auto id = IdentifyProcess(process->id().pid);
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(id->ToString(), process->id().ToString());
  auto adopted = Process::Adopt(*ProcessId::Parse(id->ToString()));
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_FALSE(adopted->TryReap());
  adopted->KillGroup();
  const auto status = Reap(*adopted);
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->unknown);
  EXPECT_TRUE(Reap(*process));
}

TEST_F(ProcessTest, PidThatWasGivenToAnotherProcessIsNotAdopted) {
  auto process = Shell("sleep 1000");
  ASSERT_TRUE(process.ok());
  ProcessId other = process->id();
  other.start_time += 1;
  EXPECT_TRUE(absl::IsNotFound(Process::Adopt(other).status()));
  process->KillGroup();
  ASSERT_TRUE(Reap(*process));
  EXPECT_TRUE(absl::IsNotFound(Process::Adopt(process->id()).status()));
}

TEST_F(ProcessTest, OrphansOfADeadLeaderAreFoundByTheirFolder) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  auto process = Shell("sleep 1000 & echo $!; exit 0");
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(WaitForOutput("\n"));
  const pid_t group = process->id().pid;
  const pid_t orphan = static_cast<pid_t>(std::stoi(Output()));
  int status = 0;
  ASSERT_EQ(waitpid(group, &status, 0), group);
  EXPECT_FALSE(KillOrphansOf(group, folder_ + "-elsewhere"));
  EXPECT_TRUE(KillOrphansOf(group, folder_));
  ASSERT_EQ(waitpid(orphan, &status, 0), orphan);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_FALSE(KillOrphansOf(group, folder_));
}

TEST_F(ProcessTest, TextThatIsNoProcessIsRefused) {
  for (const char* text : {"", "12", "x 1", "1 1", "-5 1", "12 13 14"}) {
    EXPECT_FALSE(ProcessId::Parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace trainyard
