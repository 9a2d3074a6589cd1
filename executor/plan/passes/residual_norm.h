#pragma once

// Residual sums in the kernel of the norm that reads them next: one op in place of an Add and the
// LayerNormForward right after it, so that the sum is written once and not read back, and there is
// one kernel less to start. It stays a tensor as before: the stream goes on from it, and backward
// reads it. No bits change.
//
// Runs last over the ops of a plan, when backward, types and repeated ops are there: none of these
// know the joined op, and an op that is repeated may be the norm alone.

#include <cstddef>
#include <vector>

#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

// Which pairs. At the joined op what the sum reads and what the norm writes are alive at once:
// kWithoutMore are those where each operand that is read for the last time leaves its memory to the
// sum or to the norm's result.
enum class ResidualNorms { kAll, kWithoutMore };

struct JoinedNorms {
  size_t count = 0;
  size_t in_forward = 0;  // of the first ops
};

// Joins in `ops`, of which the first `forward` are the forward pass and whose `results` live on
// (memory.h).
JoinedNorms JoinResidualNorms(ResidualNorms which, const std::vector<Tensor>& tensors,
                              const std::vector<TensorId>& results, size_t forward,
                              std::vector<Op>& ops);

}  // namespace trainyard::plan
