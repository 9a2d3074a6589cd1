#pragma once

#include "absl/container/flat_hash_map.h"
#include "executor/plan/graph/graph.h"
#include "executor/plan/ops/typing.h"

namespace trainyard::plan {

// Gives the forward ops of `graph`, all of fp32 so far, the types that they compute in, as
// PyTorch's autocast does, with casts where types meet:
//   matrix products and sums with them, convolutions, attention   operands and results of `type`
//   norms                    batch norm reads and leaves `type`; a layer norm reads fp32 and leaves
//                            `type`, or fp32 when its result is part of a residual stream
//   sums of two tensors      fp32 when one of them is: a residual stream stays fp32
//   embeddings, rows side by side, biases of their own   fp32
//   images from bytes        fp32, or `type` when nothing reads them in fp32
//   what changes no values but one by one (activations, pools, dropout, …)   as its operand
// A weight of a product is read through a copy in `type`: `copies` maps parameters to those that
// there are, and new ones are added. Returns the logits, in fp32 if that is what `of_logits` asks
// for.
TensorId ApplyPrecision(const Precision& precision, Graph& graph,
                        absl::flat_hash_map<TensorId, TensorId>& copies);

}  // namespace trainyard::plan
