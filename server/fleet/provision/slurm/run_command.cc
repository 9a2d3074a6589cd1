#include "server/fleet/provision/slurm/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"
#include "storage/base/spawn.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

std::vector<std::string> CommandEnvironment() {
  std::vector<std::string> kept = {"LC_ALL=C"};
  for (const char* name : {"PATH", "HOME", "SLURM_CONF", "SLURM_CONF_SERVER"}) {
    if (const char* value = std::getenv(name); value != nullptr) {
      kept.push_back(absl::StrCat(name, "=", value));
    }
  }
  return kept;
}

struct OutputPipe {
  FileDescriptor ours, theirs;
};

absl::StatusOr<OutputPipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  return OutputPipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// Reads what is there; closes the pipe at its end.
void Drain(FileDescriptor& pipe, std::string& text) {
  char buffer[64 << 10];
  const ssize_t got = read(pipe.get(), buffer, sizeof(buffer));
  if (got < 0 && errno == EINTR) return;
  if (got <= 0) {
    pipe = FileDescriptor(-1);
    return;
  }
  const size_t room = kMostOutput - std::min(kMostOutput, text.size());
  text.append(buffer, std::min(room, static_cast<size_t>(got)));
}

// Until both are at their ends; false: `until` passed before.
bool DrainBoth(OutputPipe& out, OutputPipe& err, absl::Duration until, CommandResult& result) {
  while (out.ours.get() >= 0 || err.ours.get() >= 0) {
    const absl::Duration left = until - SystemClock().SinceBoot();
    if (left <= absl::ZeroDuration()) return false;
    pollfd ends[2] = {{.fd = out.ours.get(), .events = POLLIN, .revents = 0},
                      {.fd = err.ours.get(), .events = POLLIN, .revents = 0}};
    const int ready = poll(ends, 2, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (ready <= 0) continue;
    if (ends[0].revents != 0) Drain(out.ours, result.out);
    if (ends[1].revents != 0) Drain(err.ours, result.err);
  }
  return true;
}

// Whether it ended before `until`; it is still to be reaped.
bool Ends(pid_t pid, absl::Duration until) {
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  while (process.valid()) {
    const absl::Duration left = until - SystemClock().SinceBoot();
    if (left <= absl::ZeroDuration()) return false;
    pollfd end{.fd = process.get(), .events = POLLIN, .revents = 0};
    if (poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) > 0) return true;
  }
  return true;
}

int Reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

absl::StatusOr<CommandResult> RunCommand(const std::vector<std::string>& arguments,
                                         absl::Duration limit) {
  const absl::Duration until = SystemClock().SinceBoot() + limit;
  TY_ASSIGN_OR_RETURN(OutputPipe out, MakePipe());
  TY_ASSIGN_OR_RETURN(OutputPipe err, MakePipe());
  SpawnSettings settings;
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setflags(&settings.attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&settings.attributes, 0);  // killed with all that it started
  posix_spawnattr_setsigmask(&settings.attributes, &none);
  posix_spawnattr_setsigdefault(&settings.attributes, &all);
  posix_spawn_file_actions_addopen(&settings.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&settings.files, out.theirs.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&settings.files, err.theirs.get(), STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&settings.files, STDERR_FILENO + 1);
  const std::vector<std::string> environment = CommandEnvironment();
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, arguments[0].c_str(), &settings.files, &settings.attributes,
                                 PointersTo(arguments).data(), PointersTo(environment).data());
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot start ", arguments[0], ": ", std::strerror(error)));
  }
  out.theirs = FileDescriptor(-1);
  err.theirs = FileDescriptor(-1);
  CommandResult result;
  const bool ended = DrainBoth(out, err, until, result) && Ends(pid, until);
  if (!ended) kill(-pid, SIGKILL);
  result.exit_code = Reap(pid);
  if (ended) return result;
  return absl::DeadlineExceededError(
      absl::StrCat(arguments[0], " did not answer within ", absl::FormatDuration(limit)));
}

}  // namespace trainyard
