#include "server/sizing/sizer_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/spawn.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// Of the server's environment a helper gets what a loader, a sanitizer and messages need; no
// secret.
constexpr std::array kInherited = {
    "PATH",         "LD_LIBRARY_PATH", "LANG",          "LC_ALL",      "TZ",
    "ASAN_OPTIONS", "TSAN_OPTIONS",    "UBSAN_OPTIONS", "LSAN_OPTIONS"};

constexpr int kProgramFd = 3;  // where a helper finds its own program while it starts
constexpr int kReapMs = 1000;

std::vector<std::string> Environment() {
  std::vector<std::string> environment;
  for (const char* name : kInherited) {
    const char* value = std::getenv(name);
    if (value != nullptr) environment.push_back(absl::StrCat(name, "=", value));
  }
  return environment;
}

// When memory is short a helper goes before anything else.
void PreferForOom(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/oom_score_adj");
  const FileDescriptor fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd.valid()) WriteAll(fd.get(), "1000", path).IgnoreError();
}

// Processes that SIGKILL did not end in time, of all servers of this program.
class Unreaped {
 public:
  void Add(pid_t pid) {
    absl::MutexLock lock(&mu_);
    pids_.push_back(pid);
  }
  void TryAgain() {
    absl::MutexLock lock(&mu_);
    std::erase_if(pids_, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
  }

 private:
  absl::Mutex mu_;
  std::vector<pid_t> pids_ ABSL_GUARDED_BY(mu_);
};

Unreaped& TheUnreaped() {
  static Unreaped& unreaped = *new Unreaped;
  return unreaped;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SizerProcess>> SizerProcess::Start(const FileDescriptor& program,
                                                                  const std::string& name,
                                                                  const SizingLimits& limits) {
  TheUnreaped().TryAgain();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot start ", name, ": ", std::strerror(errno)));
  }
  FileDescriptor ours(ends[0]), theirs(ends[1]);
  SpawnSettings settings;
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setflags(&settings.attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&settings.attributes, 0);  // Ctrl-C is for the server
  posix_spawnattr_setsigmask(&settings.attributes, &none);
  posix_spawnattr_setsigdefault(&settings.attributes, &all);
  posix_spawn_file_actions_adddup2(&settings.files, theirs.get(), STDIN_FILENO);
  posix_spawn_file_actions_addopen(&settings.files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&settings.files, program.get(), kProgramFd);
  posix_spawn_file_actions_addclosefrom_np(&settings.files, kProgramFd + 1);

  // After so long with one question the helper ends itself, a little later than the server would
  // end it.
  const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(limits.time, absl::Seconds(1))) + 2;
  const std::vector<std::string> arguments = {name, absl::StrCat(limits.memory_bytes),
                                              absl::StrCat(seconds)};
  const std::vector<std::string> environment = Environment();
  const std::string path = absl::StrCat("/proc/self/fd/", kProgramFd);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, path.c_str(), &settings.files, &settings.attributes,
                                PointersTo(arguments).data(), PointersTo(environment).data());
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot start ", name, ": ", std::strerror(error)));
  }
  PreferForOom(pid);
  return std::unique_ptr<SizerProcess>(new SizerProcess(pid, std::move(ours), limits));
}

SizerProcess::SizerProcess(pid_t pid, FileDescriptor socket, const SizingLimits& limits)
    : pid_(pid),
      pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))),
      socket_(std::move(socket)),
      limits_(limits) {}

SizerProcess::~SizerProcess() {
  if (reaped_) return;
  Kill();
  if (!Reap().has_value()) TheUnreaped().Add(pid_);
}

// A child stays a zombie until it is reaped, so the descriptor cannot mean another process.
void SizerProcess::Kill() { syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }

std::optional<int> SizerProcess::Reap() {
  pollfd entry{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  while (poll(&entry, 1, kReapMs) < 0 && errno == EINTR) {
  }
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  reaped_ = true;
  return status;
}

absl::Status SizerProcess::Exchange(const sizing::Question& question, SteadyTime deadline,
                                    Outcome& outcome) {
  TY_RETURN_IF_ERROR(Send(socket_.get(), question, deadline));
  for (;;) {
    sizing::Answer answer;
    TY_RETURN_IF_ERROR(Receive(socket_.get(), answer, deadline));
    const bool told = answer.has_looks_at() || answer.has_plans();
    if (!told) {
      outcome.answer = WithoutError(std::move(answer));
      return absl::OkStatus();
    }
    outcome.plans = answer.has_plans();
    outcome.file = answer.looks_at();
  }
}

SizerProcess::Outcome SizerProcess::Ask(const sizing::Question& question, SteadyTime until) {
  Outcome outcome;
  const SteadyTime deadline = std::min(until, FromNow(limits_.time));
  const absl::Status answered = Exchange(question, deadline, outcome);
  const bool other = answered.ok() && outcome.answer.ok() && !Answers(question, *outcome.answer);
  if (answered.ok() && !other) return outcome;
  outcome.end = absl::IsDeadlineExceeded(answered) ? End::kOutOfTime : End::kCrashed;
  std::optional<int> status;
  if (outcome.end == End::kCrashed && !other) status = Reap();  // it has closed its socket: it ends
  if (!status.has_value()) {
    Kill();
    Reap();
    outcome.how = other ? "an answer to another question" : "silence";
    return outcome;
  }
  if (WIFEXITED(*status)) {
    outcome.how = absl::StrCat("exit code ", WEXITSTATUS(*status));
    if (WEXITSTATUS(*status) == kOutOfMemory) outcome.end = End::kOutOfMemory;
  } else {
    const int number = WTERMSIG(*status);
    outcome.how = absl::StrCat("signal ", number, " (", strsignal(number), ")");
    if (number == SIGKILL) outcome.end = End::kKilled;
    if (number == SIGALRM) outcome.end = End::kOutOfTime;
  }
  return outcome;
}

}  // namespace trainyard
