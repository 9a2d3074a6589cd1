#include "clients/cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clients/cli/exit_code.h"
#include "storage/base/status.h"

namespace trainyard::cli {

Interrupt::Interrupt() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&wanted, signal);
  pthread_sigmask(SIG_BLOCK, &wanted, &before_);
  signals_.Reset(signalfd(-1, &wanted, SFD_CLOEXEC));
  done_.Reset(eventfd(0, EFD_CLOEXEC));
  TY_CHECK(signals_.valid() && done_.valid());
  thread_ = std::thread([this] { Run(); });
}

Interrupt::~Interrupt() {
  const uint64_t one = 1;
  TY_CHECK(write(done_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupt::Run() {
  pollfd watched[] = {{signals_.get(), POLLIN, 0}, {done_.get(), POLLIN, 0}};
  while (true) {
    if (poll(watched, 2, -1) < 0) continue;
    if (watched[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    absl::MutexLock lock(&mu_);
    // Outside of a Scope, or at the second signal, the process ends, whatever hangs.
    if (stop_ == nullptr || stop_->requested()) _exit(kExitInterrupted);
    stop_->Request();
  }
}

}  // namespace trainyard::cli
