#pragma once

// Where a job shards its gradients (ZeRO stage 2: Rajbhandari et al. 2020): a bucket of a logical
// rank's gradients takes memory from the op that first touches it until it is handed out, and each
// rank keeps the sums of its slices alone.

#include <vector>

#include "executor/plan/graph/plan.h"
#include "executor/plan/memory/memory.h"

namespace trainyard::plan {

// The elements of each parameter's gradient, with what pads it: a bucket has them whole.
std::vector<ElementRange> ElementsOfGradients(const Plan& plan, size_t dense);

// Gives rank plan.rank of `ranks` ranks its share of plan.buckets, and plan.clear_padding.
void ShareOutGradients(int64_t ranks, size_t dense, Plan& plan);

// Adds to `plan` an alias of `n` elements of the dense gradients from `first` on: where they are
// sharded, of this rank's share of their sum.
TensorId AddGradientAlias(int64_t first, int64_t n, Plan& plan);

// Where gradients are sharded: where those of bucket number `bucket` lie, side by side.
Region GradientRegionOf(const Plan& plan, size_t bucket);

// Where gradients are sharded: when the sums that this rank keeps need their memory within
// plan.micro, from the start of plan.share_region. In a step of one round a bucket's is written
// once that is handed out; in the second round of another the sums of the first are there.
std::vector<ReservedRange> SharesInMicro(const Plan& plan);

// Where gradients are sharded: those of each bucket, and when they are needed within plan.micro.
std::vector<TensorRun> GradientRuns(const Plan& plan);

}  // namespace trainyard::plan
