#pragma once

// How a rank adds up the logical ranks that it hosts.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// The runs of plan.gradients, from position to position, that are of chunk `chunk`.
std::vector<std::pair<size_t, size_t>> RunsOfChunk(const Plan& plan, int64_t chunk);

// Adds to `plan` places for the partial sums that any of `ranks` ranks holds at once, and the folds
// that add them up (graph/fold_tree.h): by chunk, from the last on, with which losses go. `dense`:
// how many parameters have a gradient of their own.
void AddFolds(int64_t ranks, size_t dense, Plan& plan);

}  // namespace trainyard::plan
