#include "executor/worker/ranks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/run/run_directory.h"

namespace trainyard::worker {
namespace {

// How long ranks may take to end once one has failed: to see it, and to write the weights of an
// evaluation that failed.
constexpr time_t kGraceSeconds = 60;

class Ranks {
 public:
  // These signals wait until Await asks for them; in a rank until it catches stop signals.
  Ranks() {
    signal(SIGCHLD, SIG_DFL);  // it may have been inherited as ignored, and would not come
    sigemptyset(&awaited_);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&awaited_, number);
    pthread_sigmask(SIG_BLOCK, &awaited_, nullptr);
  }

  // Returns whether this is the rank's process.
  bool Start(int rank) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) {
      std::cerr << "trainyard-worker: rank " << rank << " cannot be started: " << strerror(errno)
                << std::endl;
      Fail(run::kExitInternal);
      return false;
    }
    if (child > 0) {
      running_.push_back({child, rank});
      return false;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(run::kExitGang);
    return true;
  }

  // Returns the exit code of the whole.
  int Await() {
    // A person's Ctrl-C goes to every rank of the terminal's group: they checkpoint and leave.
    signal(SIGINT, SIG_IGN);
    while (!running_.empty()) {
      const timespec grace{.tv_sec = kGraceSeconds, .tv_nsec = 0};
      const int number =
          failed() ? sigtimedwait(&awaited_, nullptr, &grace) : sigwaitinfo(&awaited_, nullptr);
      if (number == SIGTERM) Signal(SIGTERM);
      if (number < 0 && errno == EAGAIN) Signal(SIGKILL);
      Reap();
    }
    return exit_code_;
  }

 private:
  struct Running {
    pid_t pid;
    int rank;
  };

  bool failed() const { return exit_code_ != run::kExitDone; }

  // A rank that failed because of another says less than that other.
  void Fail(int code) {
    if (!failed() || exit_code_ == run::kExitGang) exit_code_ = code;
  }

  void Signal(int number) {
    for (const Running& rank : running_) kill(rank.pid, number);
  }

  void Reap() {
    std::erase_if(running_, [&](const Running& rank) {
      int status = 0;
      const pid_t ended = waitpid(rank.pid, &status, WNOHANG);
      if (ended < 0 && errno == ECHILD) return true;  // somebody else has waited for it
      if (ended != rank.pid) return false;
      if (WIFSIGNALED(status)) {
        const int number = WTERMSIG(status);
        std::cerr << absl::StrCat("trainyard-worker: rank ", rank.rank, " was ended by signal ",
                                  number, "\n");
        const bool killed = number == SIGKILL || number == SIGTERM || number == SIGINT;
        Fail(killed ? run::kExitGang : run::kExitInternal);
      } else if (WEXITSTATUS(status) != run::kExitDone) {
        Fail(WEXITSTATUS(status));
      }
      return true;
    });
  }

  sigset_t awaited_;
  std::vector<Running> running_;
  int exit_code_ = run::kExitDone;
};

}  // namespace

int RunRanks(int ranks, const std::function<int(engine::Rendezvous)>& rank) {
  const absl::StatusOr<std::vector<engine::Rendezvous>> meetings = engine::LocalRendezvous(ranks);
  if (!meetings.ok()) {
    std::cerr << absl::StrCat("trainyard-worker: ", std::string(meetings.status().message()), "\n");
    return run::kExitInternal;
  }
  Ranks all;
  for (const engine::Rendezvous& mine : *meetings) {
    if (!all.Start(mine.rank)) continue;
    for (const engine::Rendezvous& other : *meetings) {
      if (other.rank != mine.rank) close(other.listening_fd);
    }
    const int code = rank(mine);
    std::cout.flush();
    _exit(code);  // what the parent owns is left alone
  }
  for (const engine::Rendezvous& mine : *meetings) close(mine.listening_fd);
  return all.Await();
}

}  // namespace trainyard::worker
