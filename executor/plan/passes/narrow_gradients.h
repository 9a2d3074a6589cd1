#pragma once

// Gradients that may be kept in the type that their product computes in. Where a weight is read by
// one product of the forward pass and by nothing else, one product writes its gradient and nothing
// is added to it: rounded once, it is what PyTorch's autocast makes, whose weight is a cast whose
// gradient has the cast's type. A gradient that is a sum, of several uses of its parameter or of
// several micro-batches or ranks, would be rounded with each term.

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

// The parameters whose only reader among the ops of `forward` is one Matmul or AddProduct, by the
// copy that `copies` maps them to. Convolutions do not count: their kernels leave fp32.
absl::flat_hash_set<TensorId> ReadByOneProduct(
    const Graph& forward, const absl::flat_hash_map<TensorId, TensorId>& copies);

}  // namespace trainyard::plan
