#pragma once

// The loss of a forward graph, and the gradient of its logits.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/families/families.h"
#include "executor/plan/graph/graph_builder.h"
#include "executor/plan/graph/plan.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// From the logits to their gradients.
using LogitGradients = absl::flat_hash_map<TensorId, TensorId>;

// Adds a tensor for each.
LogitGradients AddLogitGradients(const Forward& forward, int64_t rows, GraphBuilder& builder,
                                 Graph& graph);

// As kernels/ops/cross_entropy.h says; an operand may be absent where it may be there.
struct LossOptions {
  int64_t rows = 0;
  TensorId targets = kNone, losses = kNone, z_losses = kNone, correct = kNone, state = kNone;
  LogitGradients gradients = {};  // none: they are not needed
  float scale = 1, smoothing = 0, z_loss = 0;
};

// The loss of a micro-batch, and its sums over the step. Each target weighs as if all of the global
// batch counted; ClipScale makes up for those that do not. `losses`: one for each row.
std::vector<Op> TrainingLossOf(const v1::JobSpec& spec, const Plan& plan, const Forward& forward,
                               TensorId losses, const LogitGradients& gradients,
                               GraphBuilder& builder);

// One op, or where the classes are cut into shards what each of these does, and all together.
std::vector<Op> LossOf(const Forward& forward, const LossOptions& options, GraphBuilder& builder);

}  // namespace trainyard::plan
