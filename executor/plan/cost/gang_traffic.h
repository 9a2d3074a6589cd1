#pragma once

// What the ranks of a gang send to one another.

#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Bytes that one rank sends to all others together in a step: what a communicator counts, but for
// the decisions that the gang makes together, a few bytes each. README.md has the formula.
struct Traffic {
  // In buckets, while the last micro-batch's backward pass goes on; where gradients are sharded,
  // while those of all logical ranks do.
  int64_t in_backward = 0;
  int64_t after = 0;  // once it is over
  // In buckets, while the next step's first forward pass goes on; where parameters are sharded,
  // while those of all logical ranks do.
  int64_t in_forward = 0;
  // To the ranks that share its logical ranks, or tables: they wait for it.
  int64_t of_shards = 0;
  int64_t bytes() const { return in_backward + after + in_forward + of_shards; }
};

// By the group of ranks that share shards, of one that has the place of this plan's rank in its
// group; of a job of one rank 0.
std::vector<Traffic> TrafficOfRanks(const Plan& plan);

// Of the rank that sends most.
Traffic MostTraffic(const Plan& plan);

}  // namespace trainyard::plan
