#include "clients/cli/local/yard.h"

#include <signal.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/exit_code.h"
#include "clients/cli/local/process.h"
#include "clients/cli/local/restart_policy.h"
#include "clients/cli/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;

class YardTest : public testing::Test {
 protected:
  YardTest() {
    std::string pattern = testing::TempDir() + "/yardXXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~YardTest() override { std::filesystem::remove_all(dir_); }

  SpawnOptions Shell(const std::string& script) {
    SpawnOptions options;
    options.argv = {"/bin/sh", "-c", script};
    options.log_path = dir_ + "/log";
    options.pid_path = dir_ + "/pid";
    options.environment = {{kYardVariable, dir_}};
    return options;
  }

  std::string dir_;
};

TEST_F(YardTest, ConfigurationReadsBack) {
  const Yard yard(dir_);
  EXPECT_FALSE(yard.Exists());
  const YardConfig config{.port = 7071, .cpu_slots = 2, .threads_per_slot = 1, .context = "x"};
  ASSERT_TRUE(yard.WriteConfig(config).ok());
  EXPECT_TRUE(yard.Exists());
  EXPECT_EQ(*yard.ReadConfig(), config);
}

TEST_F(YardTest, ADamagedConfigurationIsReported) {
  const Yard yard(dir_);
  ASSERT_TRUE(WriteFileAtomically(yard.config_path(), "{\"port\": ").ok());
  EXPECT_EQ(yard.ReadConfig().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(YardTest, SocketPathsFitHoweverLongTheFolder) {
  EXPECT_EQ(Yard("/var/lib/trainyard").socket_dir(), "/var/lib/trainyard/postgres/socket");
  const std::string socket = Yard("/" + std::string(150, 'x')).socket_dir() + "/.s.PGSQL.5432";
  EXPECT_LT(socket.size(), sizeof(sockaddr_un{}.sun_path));
  EXPECT_NE(Yard("/" + std::string(150, 'x')).socket_dir(),
            Yard("/" + std::string(150, 'y')).socket_dir());
}

TEST_F(YardTest, OnlyOneHoldsTheLock) {
  const Yard yard(dir_);
  absl::StatusOr<FileDescriptor> first = yard.TryLock();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(yard.TryLock().status().code(), absl::StatusCode::kUnavailable);
  first->Reset(-1);
  EXPECT_TRUE(yard.TryLock().ok());
}

TEST_F(YardTest, AProcessIsKnownByPidAndStartTime) {
  const absl::StatusOr<ProcessId> process = Spawn(Shell("sleep 1000"));
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE(IsAlive(*process));
  EXPECT_FALSE(IsAlive({process->pid, process->start_time + 1}));
  EXPECT_EQ(ReadPidFile(dir_ + "/pid")->pid, process->pid);
  StopProcess(*process, {{SIGTERM, absl::Seconds(5)}});
  EXPECT_FALSE(IsAlive(*process));
  EXPECT_EQ(ReadPidFile(dir_ + "/pid").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(YardTest, AStalePidFileOfAnotherProcessIsNotBelieved) {
  ASSERT_TRUE(WriteFileAtomically(dir_ + "/pid", absl::StrCat(getpid(), " 1\n")).ok());
  EXPECT_EQ(ReadPidFile(dir_ + "/pid").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(YardTest, AProgramThatIgnoresSignalsIsKilled) {
  const absl::StatusOr<ProcessId> process = Spawn(Shell("trap '' TERM; echo up; sleep 1000"));
  ASSERT_TRUE(process.ok());
  while (TailOfFile(dir_ + "/log", 1) != "up\n") absl::SleepFor(absl::Milliseconds(2));
  StopProcess(*process, {{SIGTERM, absl::Milliseconds(50)}});
  EXPECT_FALSE(IsAlive(*process));
  for (const ProcessId& left : FindByEnvironment(kYardVariable, dir_)) Signal(left, SIGKILL);
}

TEST_F(YardTest, AProgramThatIsMissingIsNamed) {
  SpawnOptions options = Shell("");
  options.argv = {"/nowhere/program"};
  const absl::Status status = Spawn(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot start /nowhere/program"));
}

TEST_F(YardTest, RunToEndTellsExitCodesSignalsAndTimeouts) {
  EXPECT_TRUE(RunToEnd(Shell("true"), absl::Seconds(30)).ok());
  EXPECT_THAT(std::string(RunToEnd(Shell("exit 3"), absl::Seconds(30)).message()),
              HasSubstr("exit code 3"));
  EXPECT_THAT(std::string(RunToEnd(Shell("kill -9 $$"), absl::Seconds(30)).message()),
              HasSubstr("signal 9"));
  EXPECT_EQ(RunToEnd(Shell("exec sleep 1000"), absl::Milliseconds(50)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(YardTest, ProcessesAreFoundByTheirEnvironment) {
  const absl::StatusOr<ProcessId> process = Spawn(Shell("exec sleep 1000"));
  ASSERT_TRUE(process.ok());
  // While a process is between two programs the kernel shows its environment as empty.
  std::vector<ProcessId> found;
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (found.empty() && absl::Now() < end) found = FindByEnvironment(kYardVariable, dir_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pid, process->pid);
  EXPECT_TRUE(FindByEnvironment(kYardVariable, dir_ + "x").empty());
  StopProcess(*process, {});
}

TEST(RestartPolicy, StartsAtOnceAndBacksOffWhileAPartDiesYoung) {
  RestartPolicy policy;
  EXPECT_EQ(policy.OnExit(absl::ZeroDuration()), absl::Milliseconds(50));
  EXPECT_EQ(policy.OnExit(absl::ZeroDuration()), absl::Milliseconds(100));
  absl::Duration wait;
  for (int i = 0; i < 20; ++i) wait = policy.OnExit(absl::Seconds(1));
  EXPECT_EQ(wait, absl::Seconds(5));
  EXPECT_EQ(policy.early_exits(), 22);
  EXPECT_EQ(policy.OnExit(absl::Minutes(1)), absl::Milliseconds(50));
  EXPECT_EQ(policy.early_exits(), 1);
}

TEST(ExitCode, EveryKindOfErrorHasItsOwn) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::UnauthenticatedError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 5);
  EXPECT_EQ(ExitCodeOf(absl::AlreadyExistsError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 7);
  EXPECT_EQ(ExitCodeOf(absl::UnimplementedError("")), 8);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 10);
  EXPECT_EQ(ExitCodeOf(v1::SUCCEEDED), 0);
  EXPECT_EQ(ExitCodeOf(v1::FAILED), 1);
  EXPECT_EQ(ExitCodeOf(v1::CANCELLED), 9);
}

TEST(Sentence, ToldWithTheWayOut) {
  ResolvedContext local;
  local.context.server = "127.0.0.1:7070";
  EXPECT_THAT(Sentence(absl::UnavailableError("failed to connect to all addresses"), local),
              HasSubstr("no server at 127.0.0.1:7070"));
  EXPECT_THAT(Sentence(absl::UnavailableError("failed to connect to all addresses"), local),
              HasSubstr("`trainyard local start`"));
  local.context.directory = "/yard";
  EXPECT_THAT(Sentence(absl::UnavailableError("failed to connect to all addresses"), local),
              HasSubstr("`trainyard local start --dir /yard`"));
  EXPECT_EQ(Sentence(absl::UnavailableError("node n1 is away"), local), "node n1 is away");
  EXPECT_THAT(Sentence(absl::UnauthenticatedError("unknown token"), local),
              HasSubstr("wants a token and none is set"));
}

TEST(Sentence, OfALinkThatTheTwoSidesSeeDifferently) {
  ResolvedContext clear, secured;
  clear.context.server = secured.context.server = "yard:7070";
  secured.context.authorities = "system";
  const auto connect = [](const std::string& why) {
    return absl::UnavailableError("failed to connect to all addresses; last error: " + why);
  };
  EXPECT_THAT(Sentence(connect("SSL routines::certificate verify failed"), secured),
              HasSubstr("that no trusted authority signed"));
  EXPECT_THAT(Sentence(connect("Hostname Verification Check failed."), secured),
              HasSubstr("stands for other hosts"));
  EXPECT_THAT(Sentence(connect("SSL routines::wrong version number"), secured),
              HasSubstr("speaks no TLS"));
  EXPECT_THAT(Sentence(connect("ipv4:1.2.3.4:7070: Socket closed"), clear),
              HasSubstr("hangs up on clear text"));
  EXPECT_THAT(Sentence(connect("ipv4:1.2.3.4:7070: Socket closed"), secured),
              HasSubstr("no server at yard:7070"));
}

}  // namespace
}  // namespace trainyard::cli
