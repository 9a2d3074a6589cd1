#include "executor/worker/stop_signal.h"

#include <signal.h>
#include <sys/eventfd.h>

#include <thread>

namespace trainyard::worker {
namespace {

std::atomic<bool> stop_wish{false};

// Ends the process as a SIGINT that nobody catches does.
void EndByInterrupt(const sigset_t& signals) {
  signal(SIGINT, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  raise(SIGINT);
}

void AwaitSignals(const sigset_t& signals) {
  for (;;) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (number == SIGINT && stop_wish) EndByInterrupt(signals);
    WishStop();
  }
}

}  // namespace

const std::atomic<bool>& StopWish() { return stop_wish; }

int StopWishDescriptor() {
  static const int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return descriptor;
}

void WishStop() {
  stop_wish = true;
  eventfd_write(StopWishDescriptor(), 1);
}

void CatchStopSignals(bool also_interrupt) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  if (also_interrupt) sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  std::thread([signals] { AwaitSignals(signals); }).detach();
}

}  // namespace trainyard::worker
