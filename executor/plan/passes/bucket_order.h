#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

struct ReadyBucket {
  size_t bucket = 0;     // of Plan::buckets
  int64_t after_op = 0;  // of Plan::micro: the last that touches its gradients
};

// In the order in which a micro-batch is done with their gradients, which is that in which every
// rank exchanges them.
std::vector<ReadyBucket> BucketOrder(const Plan& plan);

}  // namespace trainyard::plan
