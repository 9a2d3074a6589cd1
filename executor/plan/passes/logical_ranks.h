#pragma once

// How a rank adds up the logical ranks that it hosts.

#include <cstddef>
#include <cstdint>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Adds to `plan` places for the partial sums that any of `ranks` ranks holds at once, and the folds
// that add them up (graph/fold_tree.h). `dense`: how many parameters have a gradient of their own.
void AddFolds(int64_t ranks, size_t dense, Plan& plan);

}  // namespace trainyard::plan
