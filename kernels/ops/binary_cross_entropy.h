#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Logistic loss, forward and backward at once, as PyTorch's binary_cross_entropy_with_logits.
//   logits: [rows]; targets: [rows] i32, 0 or 1; -1: the row does not count (loss 0, gradient 0)
//   losses: [rows] = max(x, 0) - x * target + log(1 + e^-|x|)
//   correct: [rows], optional: 1 when x > 0 is target, else 0
//   dlogits: [rows], optional, may be logits: (sigmoid(x) - target) * scale *
//     state.loss_scale, where state (a StepState) is given
struct BinaryCrossEntropy {
  Buffer logits, targets, losses, correct, dlogits;
  const void* state = nullptr;
  int64_t rows = 0;
  float scale = 1;
};

}  // namespace trainyard::kernels
