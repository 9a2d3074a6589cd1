#include "executor/agent/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "executor/run/run_directory.h"
#include "storage/base/process_stat.h"
#include "storage/base/spawn.h"
#include "storage/base/status.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace trainyard {
namespace {

// A process that hangs in a driver does not die, and the agent must go on renewing its lease.
constexpr absl::Duration kStrayPatience = absl::Seconds(1);

void ForEachProcess(const std::function<void(pid_t, const ProcessStat&)>& visit) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.ok()) visit(pid, *stat);
  }
}

// Whether a process of the group lives. Zombies do not count: where nobody reaps the children of a
// dead agent, they stay for ever.
bool GroupLives(pid_t pgid) {
  if (kill(-pgid, 0) != 0 && errno == ESRCH) return false;
  bool lives = false;
  ForEachProcess([&](pid_t, const ProcessStat& stat) {
    lives = lives || (stat.group == pgid && stat.alive());
  });
  return lives;
}

FileDescriptor OpenPidfd(pid_t pid) {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// Makes the kernel kill a worker before its agent when memory is short.
void PreferForOom(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/oom_score_adj");
  const absl::StatusOr<std::string> text = ReadFile("/proc/self/oom_score_adj");
  int own = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &own)) return;
  const FileDescriptor fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd.valid()) WriteAll(fd.get(), absl::StrCat(std::min(1000, own + 300)), path).IgnoreError();
}

}  // namespace

std::string ProcessId::ToString() const { return absl::StrCat(pid, " ", start_time); }

absl::StatusOr<ProcessId> ProcessId::Parse(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  ProcessId id;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &id.pid) || id.pid <= 1 ||
      !absl::SimpleAtoi(parts[1], &id.start_time)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not \"pid starttime\""));
  }
  return id;
}

absl::StatusOr<ProcessId> IdentifyProcess(pid_t pid) {
  TY_ASSIGN_OR_RETURN(const ProcessStat stat, ReadProcessStat(pid));
  return ProcessId{.pid = pid, .start_time = stat.start_time};
}

absl::StatusOr<Process> Process::Spawn(const SpawnRequest& request) {
  SpawnSettings settings;
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setflags(&settings.attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigmask(&settings.attributes, &none);
  posix_spawnattr_setsigdefault(&settings.attributes, &all);
  posix_spawn_file_actions_adddup2(&settings.files, request.stdin_fd, STDIN_FILENO);
  posix_spawn_file_actions_addopen(&settings.files, STDOUT_FILENO, request.output_path.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&settings.files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_addchdir_np(&settings.files, request.folder.c_str());
  if (request.state_fd >= 0) {
    posix_spawn_file_actions_adddup2(&settings.files, request.state_fd, run::kStateDescriptor);
  }
  posix_spawn_file_actions_addclosefrom_np(
      &settings.files, request.state_fd >= 0 ? run::kStateDescriptor + 1 : run::kStateDescriptor);

  std::vector<std::string> argv = {request.program};
  argv.insert(argv.end(), request.arguments.begin(), request.arguments.end());
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, request.program.c_str(), &settings.files, &settings.attributes,
                  PointersTo(argv).data(), PointersTo(request.environment).data());
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", request.program));
  PreferForOom(pid);

  // Our own child stays a zombie until we reap it, so its pid cannot be reused meanwhile.
  FileDescriptor pidfd = OpenPidfd(pid);
  const absl::StatusOr<ProcessId> id = IdentifyProcess(pid);
  if (!pidfd.valid() || !id.ok()) {
    const absl::Status why = pidfd.valid() ? id.status() : ErrnoStatus(errno, "pidfd_open");
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return why;
  }
  return Process(*id, std::move(pidfd), true);
}

absl::StatusOr<Process> Process::Adopt(ProcessId id) {
  FileDescriptor pidfd = OpenPidfd(id.pid);
  if (!pidfd.valid()) return absl::NotFoundError(absl::StrCat("process ", id.pid, " is gone"));
  // Read after the descriptor was opened: if the start time is right, the descriptor is of that
  // process.
  const absl::StatusOr<ProcessStat> now = ReadProcessStat(id.pid);
  if (!now.ok() || now->start_time != id.start_time || !now->alive()) {
    return absl::NotFoundError(absl::StrCat("process ", id.pid, " is gone"));
  }
  return Process(id, std::move(pidfd), false);
}

void Process::Signal(int signal) {
  syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0);
}

void Process::KillGroup() {
  // Until the process is reaped, the number of its group cannot be reused. Who reaps a process that
  // we adopted is not known, so that one must not have ended.
  if (child_ ? !status_.has_value() : !Ended()) kill(-id_.pid, SIGKILL);
  Signal(SIGKILL);
}

bool Process::Ended() const {
  pollfd ready{.fd = pidfd_.get(), .events = POLLIN};
  return poll(&ready, 1, 0) == 1;
}

bool Process::Ends() const {
  if (Ended()) return true;
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(id_.pid);
  return !stat.ok() || stat->start_time != id_.start_time || stat->ending;
}

std::optional<ExitStatus> Process::TryReap() {
  if (!status_) {
    if (!Ended()) return std::nullopt;
    ExitStatus status;
    if (child_) {
      kill(-id_.pid, SIGKILL);
      siginfo_t info{};
      if (waitid(static_cast<idtype_t>(P_PIDFD), pidfd_.get(), &info, WEXITED | WNOHANG) != 0 ||
          info.si_pid == 0) {
        status.unknown = true;
      } else if (info.si_code == CLD_EXITED) {
        status.code = info.si_status;
      } else {
        status.signal = info.si_status;
      }
    } else {
      status.unknown = true;
    }
    status_ = status;
  }
  if (GroupLives(id_.pid)) {
    kill(-id_.pid, SIGKILL);
    return std::nullopt;
  }
  // Zombies of the group that were handed to us as their subreaper.
  siginfo_t info{};
  while (waitid(P_PGID, id_.pid, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) info = {};
  return status_;
}

bool KillOrphansOf(pid_t pgid, const std::string& folder) {
  bool any = false;
  ForEachProcess([&](pid_t pid, const ProcessStat& stat) {
    if (stat.group != pgid || !stat.alive()) return;
    std::error_code error;
    const std::string cwd =
        std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/cwd"), error).string();
    if (error || !(cwd == folder || absl::StartsWith(cwd, folder + "/"))) return;
    kill(pid, SIGKILL);
    any = true;
  });
  return any;
}

void KillStrayChildren(const std::vector<pid_t>& known) {
  std::vector<pid_t> strays;
  ForEachProcess([&](pid_t pid, const ProcessStat& stat) {
    if (stat.parent == getpid() && std::find(known.begin(), known.end(), pid) == known.end()) {
      strays.push_back(pid);
    }
  });
  for (const pid_t pid : strays) kill(pid, SIGKILL);
  const absl::Time deadline = absl::Now() + kStrayPatience;
  for (const pid_t pid : strays) {
    while (waitpid(pid, nullptr, WNOHANG) == 0 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

}  // namespace trainyard
