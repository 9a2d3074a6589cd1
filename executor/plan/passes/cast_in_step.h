#pragma once

// Copies of weights in 16 bits that do not outlive the step that reads them. A copy that lies
// beside its weight from step to step has its bytes to itself, though nobody reads it once the
// backward pass is through. One that the step casts from the weight, right before the first op that
// reads it, is an activation like others: it may lie where gradients are to be (share_gradients.h).
// The price is to read the weight once more, or twice. No bits change.

#include <cstddef>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

struct StepCopy {
  TensorId weight = kNone, copy = kNone;
};

// Casts each of `copies` in plan.micro, of which the first `forward` ops are the forward pass,
// before its first reader; with `again` a second time before its first reader after those, so that
// it need not last from pass to pass. Makes activations of these copies and of what
// plan.evaluate_begin casts; sets plan.step_copy_bytes: the more of the two. Returns how many ops
// the forward pass has then.
size_t CastInStep(const std::vector<StepCopy>& copies, size_t forward, bool again, Plan& plan);

}  // namespace trainyard::plan
