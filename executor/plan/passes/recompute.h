#pragma once

// Activations computed a second time instead of kept (Chen et al. 2016, "Training deep nets with
// sublinear memory cost"): less memory, more time. The same kernel on the same inputs gives the
// same bits, and random draws are functions of a counter, so that no bit of a step changes.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Rewrites plan.micro, of which the first `forward` ops are the forward pass and the rest loss and
// backward pass, so that all that plan.summary counts as activations, `scalars` among it, is at
// most `bytes`. When no choice that was found is that small, it becomes that of the smallest. Of a
// stage of a pipeline every micro-batch in flight counts, and nothing is repeated before the
// backward pass begins. plan.summary.passes says what that saves, but not the FLOPs that it costs.
//
// An op is repeated right before the first op of the backward pass that needs what it computes, at
// most once; its inputs are kept, or repeated likewise. What is repeated is chosen greedily, lives
// and in-place ops followed exactly: of the tensors that only wait at the moment of the highest
// use, those that cost least time per byte, until the highest use is low enough. Where that is the
// backward pass of what was repeated in one go, a part of it is kept after all. In the end what
// turned out not to be needed is kept again. (Jain et al. 2020, "Checkmate", solves the same
// exactly, in hours.) Batch norms are repeated from their moments: running statistics move once.
void RecomputeWithin(int64_t bytes, const std::vector<TensorId>& scalars, size_t forward,
                     Plan& plan);

}  // namespace trainyard::plan
