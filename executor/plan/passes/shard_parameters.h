#pragma once

// Where a job shards its parameters (ZeRO stage 3: Rajbhandari et al. 2020): each rank keeps those
// that it steps. A bucket of them is gathered from all ranks before the ops that read it, and its
// memory is free once they have. Pure.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"
#include "executor/plan/memory/memory.h"

namespace trainyard::plan {

// The gathers for `ops`, in the order in which they begin, which is that of every rank. A bucket is
// gathered once or, where its memory is free for a while in between, twice: in the longest stretch
// of ops that do not read it. An exchange begins when the ops do that wait for the one before.
std::vector<Gather> Gathers(const Plan& plan, const std::vector<Op>& ops);

// For plan.micro: the parameters of each bucket, and when they are needed.
std::vector<TensorRun> ParameterRuns(const Plan& plan);

// Where those of each bucket are when `ops` need them, by `offsets` of the tensors.
std::vector<ReservedRange> GatheredIn(const Plan& plan, const std::vector<Op>& ops,
                                      const std::vector<int64_t>& offsets);

// The parameters of bucket number `bucket`, in order, and where they lie, side by side, while they
// are gathered.
std::vector<TensorId> GatheredWith(const Plan& plan, size_t bucket);
Region GatheredRegionOf(const Plan& plan, size_t bucket);

}  // namespace trainyard::plan
