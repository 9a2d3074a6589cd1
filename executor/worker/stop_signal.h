#pragma once

#include <atomic>

namespace trainyard::worker {

// Set once SIGTERM (and SIGINT, when asked for) was received: checkpoint and leave. A second SIGINT
// ends the process at once.
const std::atomic<bool>& StopWish();

// Installs the handlers. Interrupted system calls go on (SA_RESTART), but for poll and its like.
void CatchStopSignals(bool also_interrupt);

// As if SIGTERM had been received.
void WishStop();

}  // namespace trainyard::worker
