#pragma once

// The ranks of a gang as threads of this process, with the links that processes have.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "executor/engine/parallel/rendezvous.h"

namespace trainyard::engine {

// Calls `rank` with the communicator of each of `ranks` ranks, and how it was made, all at once,
// and waits for all.
inline void InThreads(int ranks,
                      const std::function<void(Communicator&, const Rendezvous&)>& rank) {
  const auto meetings = LocalRendezvous(ranks);
  ASSERT_TRUE(meetings.ok()) << meetings.status();
  std::vector<std::thread> threads;
  for (Rendezvous mine : *meetings) {
    mine.version = "test";
    threads.emplace_back([&rank, mine] {
      const auto met = Meet(mine);
      ASSERT_TRUE(met.ok()) << met.status();
      rank(**met, mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void InThreads(int ranks, const std::function<void(Communicator&)>& rank) {
  InThreads(ranks, [&rank](Communicator& communicator, const Rendezvous&) { rank(communicator); });
}

}  // namespace trainyard::engine
