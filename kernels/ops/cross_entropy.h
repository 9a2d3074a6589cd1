#pragma once

#include "kernels/operand.h"

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
// The rows of logits and of dlogits may lie apart, at the same stride; what lies between is neither
// read nor written.
template <typename T>
struct CrossEntropyOf {
  static constexpr const char* kName = "cross_entropy";
  T logits, targets, losses, z_losses, correct, dlogits;
  T state;
  int64_t rows = 0, classes = 0;
  float scale = 1, smoothing = 0, z_loss = 0;

  int64_t row_stride() const { return logits.row_stride == 0 ? classes : logits.row_stride; }
  const char* Problem() const {
    if (row_stride() < classes) return "rows of logits overlap";
    return !dlogits || dlogits.row_stride == logits.row_stride
               ? nullptr
               : "logits and their gradient have different row strides";
  }
  TY_FIELDS(WithRowStride(Read(logits, E)), Read(targets, I32), Write(losses),
            Write(z_losses, Optional()), Write(correct, Optional()),
            WithRowStride(Write(dlogits, Optional(E))), Read(state, Optional(State)), rows, classes,
            scale, smoothing, z_loss)
};
using CrossEntropy = CrossEntropyOf<Buffer>;

// count[0] (f64) = the number of targets that are not negative (+ count[0] when accumulate): a
// whole number, so that the sum over micro-batches and ranks is exact in any order. targets: [n]
// i32.
template <typename T>
struct CountTargetsOf {
  static constexpr const char* kName = "count_targets";
  T targets, count;
  int64_t n = 0;
  bool accumulate = false;
  TY_FIELDS(Read(targets, I32), WriteOrAdd(count, accumulate, F64), n, accumulate)
};
using CountTargets = CountTargetsOf<Buffer>;

// sum[0] (f64) = sum of x (+ sum[0] when accumulate), in a fixed tree; x: [n] f32.
template <typename T>
struct SumOf {
  static constexpr const char* kName = "sum";
  T x, sum;
  int64_t n = 0;
  bool accumulate = false;
  TY_FIELDS(Read(x), WriteOrAdd(sum, accumulate, F64), MayBeZero(n), accumulate)
};
using Sum = SumOf<Buffer>;

}  // namespace trainyard::kernels
