#pragma once

// The weights a run starts from.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

// Element `first` and the `count - 1` after it of parameter `name`: normal with mean 0 and
// deviation `init_std`. A function of (seed, name, index) alone, so that neither the order of
// parameters, nor threads, nor ranks change a weight.
void DrawNormal(uint64_t seed, const std::string& name, double init_std, int64_t first,
                int64_t count, float* out);

// Fills parameter or buffer `id` of the plan, on `threads` threads.
absl::Status InitializeTensor(Session& session, plan::TensorId id, uint64_t seed, int threads);

// Fills all of them. The rest of the arena is left alone.
absl::Status InitializeModel(Session& session, uint64_t seed, int threads);

}  // namespace trainyard::engine
