#include "clients/cli/local/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/local/postgres.h"
#include "spdlog/spdlog.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

constexpr absl::Duration kFolderCheckInterval =
    absl::Seconds(5);  // how often to see whether the folder is there
constexpr off_t kLogLimit = 32 << 20;

std::string DescribeExit(int status) {
  if (WIFEXITED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
  if (WIFSIGNALED(status)) return absl::StrCat("signal ", WTERMSIG(status));
  return "unknown";
}

// Renames a log that grew past the limit. Called before its part starts.
void RotateLog(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && info.st_size > kLogLimit) {
    rename(path.c_str(), (path + ".1").c_str());
  }
}

}  // namespace

absl::Status Supervisor::SetUp() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  signals_.Reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoStatus(errno, "signalfd");
  // Workers of an agent that died become our children and are reaped: none stays a zombie.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  TY_ASSIGN_OR_RETURN(const YardConfig config, yard_.ReadConfig());
  TY_ASSIGN_OR_RETURN(std::vector<Part> parts, PartsOf(yard_, config));
  for (Part& part : parts) {
    children_.emplace_back();
    children_.back().part = std::move(part);
  }
  TY_ASSIGN_OR_RETURN(const ProcessId self, FindProcess(getpid()));
  return WriteFileAtomically(yard_.pid_path("supervisor"),
                             absl::StrCat(self.pid, " ", self.start_time, "\n"));
}

absl::Status Supervisor::Run() {
  TY_RETURN_IF_ERROR(SetUp());
  for (Child& child : children_) AdoptOrStart(child);
  WriteState();
  while (WaitForSomething()) {
    Reap();
    for (Child& child : children_) {
      if (child.pidfd.valid() && !IsAlive(child.process)) OnExit(child);
      if (!child.pidfd.valid() && absl::Now() >= child.due) Start(child);
    }
  }
  StopAll();
  return absl::OkStatus();
}

void Supervisor::AdoptOrStart(Child& child) {
  const absl::StatusOr<ProcessId> running = ReadPidFile(yard_.pid_path(child.part.name));
  if (!running.ok()) {
    Start(child);
    return;
  }
  spdlog::info("adopting {} (pid {})", child.part.name, running->pid);
  Watch(child, *running);
}

void Supervisor::Watch(Child& child, const ProcessId& process) {
  child.process = process;
  child.started = absl::Now();
  absl::StatusOr<FileDescriptor> pidfd = OpenProcess(process);
  if (pidfd.ok())
    child.pidfd = *std::move(pidfd);
  else
    OnExit(child);
}

void Supervisor::Start(Child& child) {
  if (child.part.name == "postgres") RemoveStaleLockFiles(yard_);
  RotateLog(child.part.spawn.log_path);
  const absl::StatusOr<ProcessId> process = Spawn(child.part.spawn);
  if (process.ok()) {
    spdlog::info("started {} (pid {})", child.part.name, process->pid);
    Watch(child, *process);
  } else {
    child.started = absl::Now();
    child.last_exit = std::string(process.status().message());
    OnExit(child);
  }
  WriteState();
}

void Supervisor::OnExit(Child& child) {
  child.pidfd.Reset(-1);
  const absl::Duration wait = child.policy.OnExit(absl::Now() - child.started);
  child.due = absl::Now() + wait;
  ++child.restarts;
  if (child.last_exit.empty()) child.last_exit = "unknown: it was not our child";
  spdlog::warn("{} ended ({}); starting it again in {}", child.part.name, child.last_exit,
               absl::FormatDuration(wait));
  WriteState();
}

void Supervisor::Reap() {
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    for (Child& child : children_) {
      if (child.process.pid == pid) child.last_exit = DescribeExit(status);
    }
  }
}

bool Supervisor::WaitForSomething() {
  std::vector<pollfd> watched = {{signals_.get(), POLLIN, 0}};
  absl::Time wake = absl::Now() + kFolderCheckInterval;
  for (const Child& child : children_) {
    if (child.pidfd.valid())
      watched.push_back({child.pidfd.get(), POLLIN, 0});
    else
      wake = std::min(wake, child.due);
  }
  const absl::Duration left = std::max(absl::ZeroDuration(), wake - absl::Now());
  poll(watched.data(), watched.size(), static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
      spdlog::info("asked to stop by signal {}", info.ssi_signo);
      return false;
    }
  }
  if (!yard_.Exists()) {
    spdlog::warn("{} is gone: stopping", yard_.config_path());
    return false;
  }
  return true;
}

void Supervisor::StopAll() {
  std::vector<Part> parts;
  for (const Child& child : children_) parts.push_back(child.part);
  for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
    if (child->pidfd.valid()) StopProcess(child->process, child->part.stop_signals);
    spdlog::info("stopped {}", child->part.name);
  }
  StopUnsupervisedProcesses(yard_, parts);
  unlink(yard_.state_path().c_str());
  unlink(yard_.pid_path("supervisor").c_str());
}

void Supervisor::WriteState() {
  nlohmann::json parts = nlohmann::json::array();
  for (const Child& child : children_) {
    parts.push_back({{"name", child.part.name},
                     {"restarts", child.restarts},
                     {"early_exits", child.policy.early_exits()},
                     {"last_exit", child.last_exit}});
  }
  const nlohmann::json state = {{"parts", parts}};
  const auto text = state.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  const absl::Status status = WriteFileAtomically(yard_.state_path(), text + "\n");
  if (!status.ok()) spdlog::warn("{}", std::string(status.message()));
}

std::vector<PartState> ReadPartStates(const Yard& yard) {
  std::vector<PartState> states;
  const absl::StatusOr<std::string> text = ReadFile(yard.state_path(), 1 << 20);
  if (!text.ok()) return states;
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return states;
  for (const auto& part : json.value("parts", nlohmann::json::array())) {
    states.push_back({part.value("name", ""), part.value("restarts", 0),
                      part.value("early_exits", 0), part.value("last_exit", "")});
  }
  return states;
}

int StopUnsupervisedProcesses(const Yard& yard, const std::vector<Part>& parts) {
  int ended = 0;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const absl::StatusOr<ProcessId> process = ReadPidFile(yard.pid_path(part->name));
    if (process.ok()) {
      StopProcess(*process, part->stop_signals);
      ++ended;
    }
    unlink(yard.pid_path(part->name).c_str());
  }
  // Until a round ends no process: one that is being stopped may have started another meanwhile.
  bool found = true;
  while (found) {
    found = false;
    for (const ProcessId& process : FindByEnvironment(kYardVariable, yard.dir())) {
      if (process.pid == getpid()) continue;
      StopProcess(process, {{SIGTERM, absl::Milliseconds(300)}});
      found = found || !IsAlive(process);
      ++ended;
    }
  }
  return ended;
}

}  // namespace trainyard::cli
