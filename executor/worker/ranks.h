#pragma once

#include <functional>

#include "executor/engine/parallel/rendezvous.h"

namespace trainyard::worker {

// Runs `rank` in `ranks` processes, which meet over links of this machine's own, and waits for all.
// `rank` is given how to meet the others, and returns an exit code. Call it before the first thread
// is started. SIGTERM is passed on; whoever is left some time after the first failure is killed.
// Returns 0 if all ranks do, else the code of a rank that failed for a reason of its own.
int RunRanks(int ranks, const std::function<int(engine::Rendezvous)>& rank);

}  // namespace trainyard::worker
