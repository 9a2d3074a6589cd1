#pragma once

// The stages of a pipeline: which layers are whose, and what goes from one to the next.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/passes/weight_copies.h"

namespace trainyard::plan {

// Gives each parameter of a forward graph its piece (Tensor::piece). A piece begins with an op that
// is the first to read a parameter, or its copy in 16 bits, where one activation alone goes on from
// the ops before it. All pieces have about as many FLOPs as that allows. kInvalidArgument: the
// graph can be cut in fewer pieces only.
absl::Status AssignPieces(const Pipeline& pipeline, const CopyOfWeight& copies, Graph& graph);

// A graph of which the first `forward` ops are the forward pass, and the next `loss` ops the loss;
// behind them the backward pass. gradient_of[i]: of which forward op the i-th op of that is a part.
struct StagedGraph {
  size_t forward = 0, loss = 0;
  std::vector<size_t> gradient_of;
};

// Leaves out of graph.ops what belongs to other stages than that of `host`; what it needs of them
// is received (TensorKind::kReceived) before the pass through a chunk that needs it, of which the
// first op says so (Arrive), but for the first pass of all.
struct HostedStage {
  size_t forward = 0;  // how many of the forward ops are left
  double flops_elsewhere = 0;
  std::vector<StageLinks> links;  // by chunk
};
HostedStage HostStage(const ShardHost& host, const CopyOfWeight& copies, const StagedGraph& staged,
                      Graph& graph);

// The first op of each chunk in a list of forward passes whose links are `links`.
std::vector<int64_t> FirstOps(const std::vector<StageLinks>& links, const std::vector<Op>& ops);

// Sets chunks[c].forward and backward to the passes through the chunks in `ops`, of which the first
// `forward` are the forward passes. chunks[c].links are known.
void FindPasses(size_t forward, const std::vector<Op>& ops, std::vector<StageChunk>& chunks);

// Those of plan.micro, and plan.backward_from.
void FindPasses(size_t forward, Plan& plan);

// For plan.evaluate, whose links are `links`: before the first op of a chunk what comes from the
// piece before, behind its last what goes to the next, and at the end `results` from the last stage
// to all.
void AddStageExchanges(const std::vector<StageLinks>& links, const std::vector<TensorId>& results,
                       Plan& plan);

// A piece that trains nothing, and those before it, would get no gradient: kInvalidArgument names
// one. plan.of_group are the parameters of all stages, in `graph`.
absl::Status CheckStagesTrain(const Graph& graph, const Plan& plan);

}  // namespace trainyard::plan
