#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Logistic loss, forward and backward at once, as PyTorch's binary_cross_entropy_with_logits.
//   logits: [rows]; targets: [rows] i32, 0 or 1; -1: the row does not count (loss 0, gradient 0)
//   losses: [rows] = max(x, 0) - x * target + log(1 + e^-|x|)
//   correct: [rows], optional: 1 when the prediction x > 0 equals the target, else 0
//   dlogits: [rows], optional, may be logits: (sigmoid(x) - target) * scale *
//     state.loss_scale, where state (a StepState) is given
template <typename T>
struct BinaryCrossEntropyOf {
  static constexpr const char* kName = "binary_cross_entropy";
  T logits, targets, losses, correct, dlogits;
  T state;
  int64_t rows = 0;
  float scale = 1;
  TY_FIELDS(Read(logits), Read(targets, I32), Write(losses), Write(correct, Optional()),
            Write(dlogits, Optional()), Read(state, Optional(State)), rows, scale)
};
using BinaryCrossEntropy = BinaryCrossEntropyOf<Buffer>;

}  // namespace trainyard::kernels
