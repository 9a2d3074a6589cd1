#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/graph.h"

namespace trainyard::plan {

// Where the gradient of a list of tables is kept by place instead of by row (kernels/ops): a sample
// of the step after the other.
struct RowGradient {
  TensorId grad = kNone;   // [samples, tables, width]
  TensorId ids = kNone;    // i32 [samples, tables]
  TensorId state = kNone;  // StepState
};

// Appends to `graph.ops` the gradient of the forward ops there now.
//   loss_gradient    maps what the ops after the forward pass left: tensor -> its gradient (logits)
//   gradients        parameter, or its copy in 16 bits -> the kGradient tensor that receives its
//                    gradient; those that are in no map are frozen: nothing is computed that only
//                    they need
//   accumulate       gradients of parameters are added to what is there, from the first writer on
//                    (several micro-batches); otherwise the first writer overwrites where it can.
//   rows             first of a list of tables -> where their gradient is kept; such tables are in
//                    no other map
//
// Each tensor is written once but for two cases: gradients of parameters, and gradients of
// activations that a later op adds into because it can (layer norm, matmul). The gradient of an
// activation has its type, that of a parameter the type of the tensor that `gradients` maps to:
// fp32, or what the one product that writes it computes in. An op's gradient reads only tensors
// that no op before it in the backward pass has overwritten. Inputs get no gradient.
void AppendBackward(Graph& graph, const absl::flat_hash_map<TensorId, TensorId>& loss_gradient,
                    const absl::flat_hash_map<TensorId, TensorId>& gradients, bool accumulate,
                    const absl::flat_hash_map<TensorId, RowGradient>& rows = {});

}  // namespace trainyard::plan
