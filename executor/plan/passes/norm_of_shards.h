#pragma once

// The norm of a gradient of which shards hold parts.

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Appends to plan.norm what writes the sum of the squares of all gradients to `sum` (f64): each
// leaf (kernels/ops/norm_leaves.h) is of one parameter, so that it does not matter who has which
// shard, or which stage of a pipeline. Rows that several shards have are added up (fold_replicas.h)
// and count once. Where several ranks share a logical rank, each makes the sums of its own leaves,
// and is sent the others.
void AddNormOfShards(TensorId sum, Plan& plan);

}  // namespace trainyard::plan
