#include "executor/worker/stop_signal.h"

#include <signal.h>

namespace trainyard::worker {
namespace {

std::atomic<bool> stop_wish{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

void OnSignal(int signal_number) {
  if (signal_number == SIGINT && stop_wish) {
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
  }
  stop_wish = true;
}

}  // namespace

const std::atomic<bool>& StopWish() { return stop_wish; }

void WishStop() { stop_wish = true; }

void CatchStopSignals(bool also_interrupt) {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  // A wish to stop is looked at between steps. It must not make a file that is being opened or
  // synced at that moment fail with EINTR: that would be a storage failure, and spend a restart.
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  if (also_interrupt) sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

}  // namespace trainyard::worker
