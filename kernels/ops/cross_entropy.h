#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Softmax with cross-entropy, forward and backward at once. With lse = log-sum-exp(logits) and
// t = (1 - smoothing) * onehot(target) + smoothing / classes (Szegedy et al. 2016, as PyTorch's
// CrossEntropyLoss):
//   logits: [rows, classes] E; targets: [rows] i32, negative (PyTorch's -100): the row does not
//     count (losses 0, gradient 0)
//   losses: [rows] f32 = lse - sum(t * logits) + z_loss * lse^2
//   z_losses: [rows] f32, optional: the last term alone (Chowdhery et al. 2022, PaLM, section 5)
//   correct: [rows] f32, optional: 1 when the first largest logit is the target's, else 0
//   dlogits: [rows, classes] E, optional, may be logits:
//     (softmax * (1 + 2 z_loss lse) - t) * scale * state.loss_scale, the last factor where state (a
//     StepState) is given
struct CrossEntropy {
  Buffer logits, targets, losses, z_losses, correct, dlogits;
  const void* state = nullptr;
  int64_t rows = 0, classes = 0;
  // Elements from one row of logits, and of dlogits, to the next, at least `classes`; 0: the rows
  // are dense. What lies between is neither read nor written.
  int64_t row_stride = 0;
  float scale = 1, smoothing = 0, z_loss = 0;

  int64_t step() const { return row_stride == 0 ? classes : row_stride; }
};

// count[0] (f64) = targets that are not negative (+ count[0] when accumulate): a whole number,
// exact in whatever order micro-batches and ranks are added. targets: [n] i32.
struct CountTargets {
  Buffer targets, count;
  int64_t n = 0;
  bool accumulate = false;
};

// sum[0] (f64) = sum of x (+ sum[0] when accumulate), in a fixed tree; x: [n] f32.
struct Sum {
  Buffer x, sum;
  int64_t n = 0;
  bool accumulate = false;
};

}  // namespace trainyard::kernels
