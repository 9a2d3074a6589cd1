#pragma once

// The shards of tensor parallelism on several ranks, which share those of each logical rank.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// From a parameter to what goes with it: its copy in 16 bits, or its gradient.
using OfParameter = absl::flat_hash_map<TensorId, TensorId>;

// Leaves out of graph.ops, those of a stage, what belongs to shards that `host` does not host. Each
// op stays as it is, but for look-ups, each rank of which finds the rows that it has: AddParts puts
// these together. What other ranks find is received (TensorKind::kReceived). Every rank of the
// stage computes what belongs to no shard. Returns how many of the first `first` ops are left, and
// FLOPs of what is not.
struct HostedOps {
  size_t first = 0;
  double flops_elsewhere = 0;
};
HostedOps HostShards(const ShardHost& host, const std::vector<const OfParameter*>& with_parameters,
                     size_t first, Graph& graph);

// The exchanges that `ops` need: before an op what it reads of several ranks, or gathers from them.
// Every rank of the stage has as many, in the same order.
std::vector<ShardExchange> ShardExchanges(const ShardHost& host, const std::vector<Tensor>& tensors,
                                          const std::vector<Op>& ops);

}  // namespace trainyard::plan
