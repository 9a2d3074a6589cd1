#pragma once

// Rows of a parameter that several shards have (graph/shard_builder.h: CutHeads): their gradients.

#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Appends to plan.norm what adds up the gradients of the rows that several shards have, in the
// order of the shards and the tree of kernels/ops/add_parts.h, and gives all of them the sum, so
// that their copies stay alike. What other ranks have of them is exchanged before. Returns how many
// elements of each parameter of plan.of_group that is trained no shard before it has: they come
// first.
std::vector<int64_t> FoldReplicas(Plan& plan);

}  // namespace trainyard::plan
