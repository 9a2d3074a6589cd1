#pragma once

// Low-rank adaptation (v1::Lora) of a forward graph: which weights, and the ops that are added.

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "executor/plan/graph/graph_builder.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// What spec.fine_tune.lora makes of a model.
struct Adaptation {
  std::vector<Adapter> adapters;         // those of one weight side by side, in order of its rows
  absl::flat_hash_set<TensorId> frozen;  // all parameters but the adapters' and also_train's
};

// Looks at the forward ops that end in `logits` and adds the adapters' parameters through
// `builder`: {module}.lora_A.weight [rank, in] and {module}.lora_B.weight [out, rank] for the
// {module}.weight that each adapts. kInvalidArgument names the pattern that matches nothing, or
// nothing that can be adapted, with names that are near; the matrix that `rank` is too large for; a
// pattern of also_train that parts what is one tensor here, or names what is adapted.
absl::StatusOr<Adaptation> ChooseAdapters(const v1::JobSpec& spec, TensorId logits,
                                          const Graph& graph, GraphBuilder& builder);

// Rewrites the forward ops of `graph`, those that `builder` wrote: each product of an adapted
// weight goes on to + scale (drop(x) A') B', into the columns that are the adapter's. Adapters of
// one product see one dropout. What a product leaves keeps its TensorId.
void ApplyAdapters(const std::vector<Adapter>& adapters, double dropout, GraphBuilder& builder,
                   Graph& graph);

}  // namespace trainyard::plan
