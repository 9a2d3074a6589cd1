#pragma once

// Activations computed a second time instead of kept (Chen et al. 2016, "Training deep nets with
// sublinear memory cost"): less memory, more time. The same kernel on the same inputs gives the
// same bits, and random draws are functions of a counter, so that no bit of a step changes.

#include <cstddef>
#include <cstdint>

#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

// Rewrites graph.ops, of which the first `forward` are the forward pass and the rest loss and
// backward pass, so that PackActivations gives them at most `budget` bytes, and returns what it
// gives. When no choice that was found is that small, the graph becomes that of the smallest.
//
// An op is repeated right before the first op of the backward pass that needs what it computes, at
// most once; its inputs are kept, or repeated likewise. What is repeated is chosen greedily, lives
// and in-place ops followed exactly: of the tensors that only wait at the moment of the highest
// use, those that cost least time per byte, until the highest use is low enough. Where that is the
// backward pass of what was repeated in one go, a part of it is kept after all. In the end what
// turned out not to be needed is kept again. (Jain et al. 2020, "Checkmate", solves the same
// exactly, in hours.) Batch norms are repeated from their moments: running statistics move once.
int64_t Recompute(size_t forward, int64_t budget, Graph& graph);

}  // namespace trainyard::plan
