#pragma once

// What ranks exchange in tests, and checks of what came.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "executor/engine/parallel/communicator.h"
#include "tests/unit/engine/parallel/gang.h"

namespace trainyard::engine::testing {

// One exchange of every rank with every other one, and itself, of `bytes(from, to)` bytes.
absl::Status ExchangeAll(Communicator& communicator, uint64_t seed,
                         const std::function<size_t(int from, int to)>& bytes);
absl::Status GatherAll(Communicator& communicator, uint64_t seed, size_t bytes);
absl::Status BroadcastOne(Communicator& communicator, uint64_t seed, int root, size_t bytes);

// The same calls on every rank, drawn from a seed: sizes from nothing to several rings.
absl::Status RandomRounds(Communicator& communicator, int rounds);

// Exchanges large messages until that fails; says "exchanged" after the first.
absl::Status ExchangeWithoutEnd(Communicator& communicator, const Gang::Say& say);

// "rank 2 (127.0.0.1:7011)"
std::string Name(const std::vector<Rendezvous>& ranks, int rank);

}  // namespace trainyard::engine::testing
