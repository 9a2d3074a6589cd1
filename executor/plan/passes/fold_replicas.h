#pragma once

// Rows of a parameter that several shards have (graph/shard_builder.h: CutHeads): their gradients.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Appends to plan.norm what adds up, of the first `dense` parameters, the gradients of the rows
// that several shards have, in the order of the shards and the tree of kernels/ops/add_parts.h, and
// gives all of them the sum, so that their copies stay alike. Returns how many elements of each
// parameter no shard before it has: they come first.
std::vector<int64_t> FoldReplicas(size_t dense, Plan& plan);

}  // namespace trainyard::plan
