#pragma once

#include <atomic>

namespace trainyard::worker {

// Set once SIGTERM (and SIGINT, when asked for) was received: checkpoint and leave. A second SIGINT
// ends the process at once.
const std::atomic<bool>& StopWish();

// A descriptor that can be read once StopWish() is set, for those who wait in poll().
int StopWishDescriptor();

// Blocks the signals in this thread, and so in all that it starts, and has a thread of their own
// wait for them. Call it before the first thread is started.
//
// No handler, because a handler runs on the stack of the thread that it interrupts, and that need
// not be a stack: matrix products of oneDNN point the stack pointer at a buffer from malloc with
// some hundred bytes in front of it. What the kernel stores there for a handler, 3 KiB with AVX-512
// and 11 KiB with AMX, overwrites the heap.
void CatchStopSignals(bool also_interrupt);

// As if SIGTERM had been received.
void WishStop();

}  // namespace trainyard::worker
