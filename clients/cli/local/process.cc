#include "clients/cli/local/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "storage/base/process_stat.h"
#include "storage/base/spawn.h"
#include "storage/base/status.h"

extern char** environ;

namespace trainyard::cli {
namespace {

std::vector<std::string> MergedEnvironment(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const bool replaced = std::any_of(added.begin(), added.end(), [&](const auto& pair) {
      return absl::StartsWith(text, pair.first + "=");
    });
    if (!replaced) out.push_back(text);
  }
  for (const auto& [name, value] : added) out.push_back(absl::StrCat(name, "=", value));
  return out;
}

[[noreturn]] void FailChild(int report_fd) {
  const int error = errno;
  (void)!write(report_fd, &error, sizeof(error));
  _exit(127);
}

bool BecomeUser(const User& user) {
  return initgroups(user.name.c_str(), user.gid) == 0 && setgid(user.gid) == 0 &&
         setuid(user.uid) == 0;
}

bool WriteOwnPid(const std::string& path) {
  const absl::StatusOr<ProcessStat> self = ReadProcessStat(getpid());
  if (!self.ok()) return false;
  return WriteFileAtomically(path, absl::StrCat(getpid(), " ", self->start_time, "\n"), 0644).ok();
}

// In the child, between fork and exec.
[[noreturn]] void BecomeProgram(const SpawnOptions& options, std::vector<char*>& argv,
                                std::vector<char*>& environment, int log_fd, int report_fd) {
  if (options.new_session)
    setsid();
  else
    setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGPIPE, SIGHUP, SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0) {
    FailChild(report_fd);
  }
  if (options.inherited_fd >= 0) fcntl(options.inherited_fd, F_SETFD, 0);
  if (!options.pid_path.empty() && !WriteOwnPid(options.pid_path)) FailChild(report_fd);
  if (chdir("/") != 0) FailChild(report_fd);
  if (options.user.has_value() && !BecomeUser(*options.user)) FailChild(report_fd);
  execve(argv[0], argv.data(), environment.data());
  FailChild(report_fd);
}

}  // namespace

absl::StatusOr<ProcessId> FindProcess(pid_t pid) {
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  if (stat.ok() && stat->alive()) return ProcessId{pid, stat->start_time};
  return absl::NotFoundError(absl::StrCat("no process ", pid));
}

bool IsAlive(const ProcessId& process) {
  const absl::StatusOr<ProcessId> now = FindProcess(process.pid);
  return now.ok() && now->start_time == process.start_time;
}

absl::StatusOr<FileDescriptor> OpenProcess(const ProcessId& process) {
  FileDescriptor fd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  // Checked after the open: a pid that another process had got by then is noticed, and an open
  // descriptor stays with its process.
  if (!fd.valid() || !IsAlive(process)) {
    return absl::NotFoundError(absl::StrCat("process ", process.pid, " is gone"));
  }
  return fd;
}

bool Signal(const ProcessId& process, int signal) {
  const absl::StatusOr<FileDescriptor> fd = OpenProcess(process);
  return fd.ok() && syscall(SYS_pidfd_send_signal, fd->get(), signal, nullptr, 0) == 0;
}

bool WaitGone(const ProcessId& process, absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  bool gone = false;
  while (!gone) {
    const absl::StatusOr<FileDescriptor> fd = OpenProcess(process);
    if (!fd.ok()) break;
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd watched = {fd->get(), POLLIN, 0};
    gone = poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) > 0;
  }
  waitpid(process.pid, nullptr, WNOHANG);
  return true;
}

void StopProcess(const ProcessId& process,
                 const std::vector<std::pair<int, absl::Duration>>& signals) {
  for (const auto& [signal, limit] : signals) {
    if (!Signal(process, signal) || WaitGone(process, limit)) return;
  }
  Signal(process, SIGKILL);
  WaitGone(process, absl::Seconds(5));
}

absl::StatusOr<ProcessId> Spawn(const SpawnOptions& options) {
  const FileDescriptor log(
      open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  if (!log.valid()) return ErrnoStatus(errno, options.log_path);
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const FileDescriptor report(pipe_fds[0]);
  FileDescriptor report_end(pipe_fds[1]);
  std::vector<std::string> words = options.argv;
  std::vector<std::string> environment = MergedEnvironment(options.environment);
  std::vector<char*> argv = PointersTo(words);
  std::vector<char*> envp = PointersTo(environment);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) BecomeProgram(options, argv, envp, log.get(), report_end.get());
  const absl::StatusOr<ProcessId> process = FindProcess(pid);
  report_end.Reset(-1);
  int error = 0;
  ssize_t n;
  do {
    n = read(report.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    return ErrnoStatus(error, absl::StrCat("cannot start ", options.argv[0]));
  }
  // If it has ended already: a ProcessId without a start time is never alive.
  return process.ok() ? *process : ProcessId{pid, 0};
}

absl::Status RunToEnd(const SpawnOptions& options, absl::Duration limit) {
  TY_ASSIGN_OR_RETURN(const ProcessId process, Spawn(options));
  const absl::Time end = absl::Now() + limit;
  int status = 0;
  while (true) {
    const absl::Duration left = end - absl::Now();
    const absl::StatusOr<FileDescriptor> fd = OpenProcess(process);
    if (fd.ok() && left > absl::ZeroDuration()) {
      pollfd watched = {fd->get(), POLLIN, 0};
      poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    }
    if (waitpid(process.pid, &status, WNOHANG) != 0) break;
    if (left <= absl::ZeroDuration()) {
      Signal(process, SIGKILL);
      waitpid(process.pid, &status, 0);
      return absl::DeadlineExceededError(
          absl::StrCat(options.argv[0], " did not end within ", absl::FormatDuration(limit)));
    }
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(
      WIFEXITED(status)
          ? absl::StrCat(options.argv[0], " failed with exit code ", WEXITSTATUS(status))
          : absl::StrCat(options.argv[0], " was ended by signal ", WTERMSIG(status)));
}

absl::StatusOr<ProcessId> ReadPidFile(const std::string& path) {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 4096));
  const std::vector<std::string> fields = absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
  ProcessId process;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &process.pid) ||
      !absl::SimpleAtoi(fields[1], &process.start_time) || !IsAlive(process)) {
    return absl::NotFoundError(absl::StrCat(path, " names no live process"));
  }
  return process;
}

std::vector<ProcessId> FindByEnvironment(const std::string& name, const std::string& value) {
  const std::string wanted = absl::StrCat(name, "=", value);
  std::vector<ProcessId> found;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = readdir(proc)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    const absl::StatusOr<ProcessId> process = FindProcess(pid);
    const absl::StatusOr<std::string> environment =
        ReadFile(absl::StrCat("/proc/", pid, "/environ"), 4 << 20);
    if (!process.ok() || !environment.ok()) continue;
    for (const absl::string_view text : absl::StrSplit(*environment, '\0')) {
      if (text == wanted) {
        found.push_back(*process);
        break;
      }
    }
  }
  closedir(proc);
  return found;
}

std::string TailOfFile(const std::string& path, int lines) {
  std::ifstream file(path);
  std::deque<std::string> last;
  for (std::string line; std::getline(file, line);) {
    last.push_back(line);
    if (static_cast<int>(last.size()) > lines) last.pop_front();
  }
  std::string out;
  for (const std::string& line : last) absl::StrAppend(&out, line, "\n");
  return out;
}

}  // namespace trainyard::cli
