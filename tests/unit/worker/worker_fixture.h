#pragma once

// The program trainyard-worker as a child, and the folder that an agent would give it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "executor/run/event_log.h"
#include "executor/run/run_directory.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"
#include "tests/unit/engine/engine_fixture.h"

extern char** environ;

namespace trainyard::worker {

inline constexpr absl::Duration kPatience = absl::Seconds(60);

// A started program; its stdin is a pipe, its output goes to a file.
class Child {
 public:
  Child(std::vector<std::string> arguments, const std::string& output) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    arguments.insert(arguments.begin(), TRAINYARD_WORKER);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    stdin_.Reset(ends[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  void Signal(int signal) const { kill(pid_, signal); }
  // Whether it has a handler for `signal`.
  bool Catches(int signal) const {
    const auto status = ReadFile(absl::StrCat("/proc/", pid_, "/status"));
    EXPECT_TRUE(status.ok());
    const size_t at = status.value_or("").find("SigCgt:\t");
    EXPECT_NE(at, std::string::npos);
    const uint64_t caught = std::strtoull(status->c_str() + at + 8, nullptr, 16);
    return (caught >> (signal - 1) & 1) != 0;
  }
  void Say(const std::string& line) { ASSERT_TRUE(WriteAll(stdin_.get(), line, "stdin").ok()); }
  void CloseStdin() { stdin_.Reset(-1); }

  // The exit code, or -signal.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor stdin_;
};

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    assignment_.mutable_key()->set_job_uid("uid");
    assignment_.mutable_key()->set_attempt(1);
    assignment_.set_world_size(1);
    *assignment_.mutable_spec() = engine::SmallGpt(engine::WriteText(folder_.path()), 10);
    assignment_.set_checkpoint_root("file://" + folder_.path() + "/ckpt");
  }

  // Writes the folder that an agent would, with a lease of `lease` from now.
  run::RunDirectory Prepare(const std::string& name, absl::Duration lease) {
    const run::RunDirectory directory(folder_.path() + "/" + name);
    EXPECT_TRUE(directory.WriteAssignment(assignment_).ok());
    run::LeaseFile::Open(directory.lease_path(), true)
        ->ExtendLife(SystemClock().SinceBoot() + lease);
    return directory;
  }

  Child Start(const run::RunDirectory& directory) {
    return Child({"--run-dir", directory.path(), "--device", "cpu", "--threads", "1"}, Output());
  }

  std::string Output() const { return folder_.path() + "/output"; }
  std::string ReadOutput() const {
    std::ifstream in(Output());
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  static std::vector<v1::RankEvent> Events(const run::RunDirectory& directory) {
    return run::EventReader(directory.events_path()).Read(1 << 20).value();
  }

  // Until an event fulfils `what`.
  static bool Await(const run::RunDirectory& directory,
                    const std::function<bool(const v1::RankEvent&)>& what) {
    run::EventReader reader(directory.events_path());
    for (const absl::Time deadline = absl::Now() + kPatience; absl::Now() < deadline;) {
      const std::vector<v1::RankEvent> events = reader.Read(1 << 20).value();
      if (std::any_of(events.begin(), events.end(), what)) return true;
      absl::SleepFor(absl::Milliseconds(1));  // the file has no other way to tell
    }
    return false;
  }

  engine::TempFolder folder_;
  v1::Assignment assignment_;
};

}  // namespace trainyard::worker
