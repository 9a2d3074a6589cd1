#pragma once

// The rows (tokens) of what belongs to no shard, shared out among the ranks that share the shards
// of a stage (sequence parallelism: Korthikanti et al. 2022, "Reducing Activation Recomputation in
// Large Transformer Models").

#include <cstddef>
#include <cstdint>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Which of `rows` rows the rank at `place` of the stage has: those of the cut of sums over tokens
// (kernels/ops/column_sum.h) that goes with the shards that it hosts.
Run RowsAt(const ShardHost& host, int64_t place, int64_t rows);

// Rewrites graph.ops, those of a stage with all of its shards, of which the first `forward` are the
// forward pass; returns how many of them are now.
//
// What the shards found of a sum is added up by each rank for its rows alone (AddRows), and what
// goes row by row from there on (norms, dropout, residual sums, and their gradients) is computed
// for these rows. Before an op that needs all rows the ranks put them together (GatherRows): in the
// backward pass again, so that no rank keeps all rows for it. The gradients of a norm's parameters,
// sums over all rows, are parts of a sum, one of each rank.
size_t ShareRows(const ShardHost& host, size_t forward, std::vector<StageLinks>& links,
                 Graph& graph);

}  // namespace trainyard::plan
