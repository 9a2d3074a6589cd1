#pragma once

// A real agent process against a scripted server over real gRPC, with a worker that stands in for
// the real one.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/agent/process.h"
#include "storage/base/file.h"
#include "tests/unit/agent/fake_server.h"
#include "tests/unit/run/scratch.h"

namespace trainyard {

inline v1::Assignment Assigned(const std::string& uid, const std::string& script, int slot = 0) {
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

inline v1::Assignment Suspended(v1::Assignment assignment, int64_t grace_ms) {
  assignment.set_wish(v1::Assignment::SUSPEND);
  assignment.set_grace_ms(grace_ms);
  return assignment;
}

// To leave its state in memory.
inline v1::Assignment Leaving(const v1::Assignment& assignment) {
  v1::Assignment leaving = Suspended(assignment, 60'000);
  leaving.set_keep_state(v1::Assignment::HERE);
  return leaving;
}

// Attempt `attempt` of job a, from what attempt `kept` left in memory.
inline v1::Assignment GoingOn(int64_t attempt, int64_t kept) {
  v1::Assignment next = Assigned("a", "run");
  next.mutable_key()->set_attempt(attempt);
  next.mutable_kept()->set_attempt(kept);
  next.mutable_kept()->set_step(7);
  return next;
}

// Waits, without a wake-up to wait for, until `condition` holds.
inline bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

inline bool Lives(pid_t pid) {
  const auto text = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  return text.ok() && text->find(") Z ") == std::string::npos;
}

// Processes (zombies aside) that work in `folder` or below.
inline std::set<pid_t> ProcessesIn(const std::string& folder) {
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

}  // namespace trainyard
