#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Softmax with cross-entropy, forward and backward at once.
//   logits: [rows, classes]; targets: [rows] i32, -1: the row does not count (loss 0, gradient 0)
//   losses: [rows] f32 = log-sum-exp(logits) - logits[target]
//   correct: [rows] f32, optional: 1 when the first largest logit is the target's, else 0
//   dlogits: [rows, classes], optional, may be logits: (softmax - onehot(target)) * scale
struct CrossEntropy {
  Buffer logits, targets, losses, correct, dlogits;
  int64_t rows = 0, classes = 0;
  float scale = 1;
};

// sum[0] (f64) = sum of x (+ sum[0] when accumulate), in a fixed tree; x: [n] f32.
struct Sum {
  Buffer x, sum;
  int64_t n = 0;
  bool accumulate = false;
};

}  // namespace trainyard::kernels
