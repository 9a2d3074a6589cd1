#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

struct ReadyBucket {
  size_t bucket = 0;     // of Plan::buckets
  int64_t after_op = 0;  // of Plan::micro: the last that touches its gradients
  // Where gradients are sharded: the op after which the rank waits until the bucket is exchanged;
  // its memory is free then. The one after which the next bucket is ready, so that one travels
  // while the next one is made, or the last.
  int64_t free_after_op = 0;
};

// In the order in which a micro-batch is done with their gradients, which is that in which every
// rank exchanges them.
std::vector<ReadyBucket> BucketOrder(const Plan& plan);

struct AwaitedBucket {
  size_t bucket = 0;      // of Plan::buckets
  int64_t before_op = 0;  // of Plan::micro: the first that reads its parameters; or the end of it
};

// In the order in which a micro-batch reads their parameters, which is that in which every rank
// gathers them after a step. None where they are sharded (passes/shard_parameters.h).
std::vector<AwaitedBucket> AwaitedOrder(const Plan& plan);

}  // namespace trainyard::plan
