#pragma once

// The weights a run starts from.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "executor/engine/parameter_shares.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

// The stream of kernels::DrawNormal for parameter `name`, of a shard that of the whole: weights are
// a function of (seed, name, index) alone, so that neither the order of parameters nor threads,
// ranks or devices change them.
uint64_t StreamOf(const std::string& name);

// Fills parameter or buffer `id` of the plan: normal with mean 0 and standard deviation init_std,
// or init_value everywhere.
absl::Status InitializeTensor(Session& session, plan::TensorId id, uint64_t seed);

// Fills parameter `id`, or what this rank keeps of it.
absl::Status InitializeParameter(Session& session, plan::TensorId id, uint64_t seed,
                                 ParameterShares& shares);

// Fills all of them. The rest of the arena is left alone.
absl::Status InitializeModel(Session& session, uint64_t seed);

}  // namespace trainyard::engine
