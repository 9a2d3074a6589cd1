#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// sum[0] (f64) = sum of squares of x, [n] E (+ sum[0] when accumulate), in a fixed tree that
// depends on n only.
template <typename T>
struct SquaredNormOf {
  static constexpr const char* kName = "squared_norm";
  T x, sum;
  int64_t n = 0;
  bool accumulate = false;
  TY_FIELDS(Read(x, E), WriteOrAdd(sum, accumulate, F64), MayBeZero(n), accumulate)
};
using SquaredNorm = SquaredNormOf<Buffer>;

// Computes the factor that an update multiplies the summed gradient by. The gradient is a sum over
// `rows` targets, each weighted by 1 / rows and, if state (a StepState) is given, by
// state.loss_scale; only count[0] (f64) of the targets counted. Times factor = rows / count /
// loss_scale it is the mean over those. rows / count is 1 when count is absent or 0.
//   norm[0] (f32) = sqrt(sum[0]) * factor
//   scale[0] (f32) = factor * min(1, max_norm / (norm + 1e-6)) as PyTorch's clip_grad_norm_; factor
//     when max_norm is infinite
// scale[0] is NaN if the step must not be taken: when norm or loss[0] (f64, optional) is not
// finite, or when scale[0] was NaN before, which lasts until the trainer has seen it. With a NaN
// grad_scale the steps of this file, lamb.h, muon.h and row_optimizer.h, and CopyIfTaken, leave all
// that they update as it is, except scratch.
template <typename T>
struct ClipScaleOf {
  static constexpr const char* kName = "clip_scale";
  T sum, count, loss, norm, scale;
  T state;
  int64_t rows = 0;
  float max_norm = 0;

  const char* Problem() const {
    return !count || rows > 0 ? nullptr : "there is a count of rows but no number of them";
  }
  TY_FIELDS(Read(sum, F64), Read(count, Optional(F64)), Read(loss, Optional(F64)), Write(norm),
            Update(scale), Read(state, Optional(State)), MayBeZero(rows), max_norm)
};
using ClipScale = ClipScaleOf<Buffer>;

// Steps over a contiguous run of parameters. Gradients are E, everything else is fp32. `copy` [n],
// bf16 or f16, receives the new w, rounded, if it is given.
//   lr = state.learning_rate * learning_rate_scale

// As PyTorch's SGD. g = gradient * grad_scale[0] + weight_decay * w
//   momentum > 0: v = momentum * v + g (v = g at the first update), then w -= lr * v or, with
//     nesterov, w -= lr * (g + momentum * v)
//   momentum = 0: w -= lr * g
template <typename T>
struct SgdStepOf {
  static constexpr const char* kName = "sgd";
  T w, grad, velocity;  // [n], grad E; velocity optional when momentum is 0
  T grad_scale;         // [1] f32, optional
  T state;              // learning_rate, updates
  T copy;
  int64_t n = 0;
  float momentum = 0, weight_decay = 0, learning_rate_scale = 1;
  bool nesterov = false;
  TY_FIELDS(Update(w), Read(grad, E), Update(velocity, OptionalIf(momentum == 0)),
            Read(grad_scale, Optional()), Read(state, State), Write(copy, Optional(Narrow)), n,
            momentum, weight_decay, learning_rate_scale, nesterov)
};
using SgdStep = SgdStepOf<Buffer>;

// Loshchilov & Hutter 2019, as PyTorch's AdamW. t = state.updates + 1, g = gradient * grad_scale[0]
//   w -= lr * weight_decay * w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
template <typename T>
struct AdamWStepOf {
  static constexpr const char* kName = "adamw";
  T w, grad, m, v;  // [n], grad E
  T grad_scale;     // [1] f32, optional
  T state;          // learning_rate, updates
  T copy;
  int64_t n = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0, learning_rate_scale = 1;
  TY_FIELDS(Update(w), Read(grad, E), Update(m), Update(v), Read(grad_scale, Optional()),
            Read(state, State), Write(copy, Optional(Narrow)), n, beta1, beta2, epsilon,
            weight_decay, learning_rate_scale)
};
using AdamWStep = AdamWStepOf<Buffer>;

// Moving average of weights: average += r * (w - average),  r = 1 - decay
// With warm-up the decay is min(decay, (1 + step) / (10 + step)), as TensorFlow's
// ExponentialMovingAverage.
template <typename T>
struct EmaStepOf {
  static constexpr const char* kName = "ema";
  T average, w;  // [n]
  T grad_scale;  // [1] f32, optional: NaN if the step is not taken
  T state;       // StepState: step
  int64_t n = 0;
  double decay = 0;  // in [0, 1); double, since 1 - 0.9999 loses digits in fp32
  bool warmup = false;
  TY_FIELDS(Update(average), Read(w), Read(grad_scale, Optional()), Read(state, State), n, decay,
            warmup)
};
using EmaStep = EmaStepOf<Buffer>;

}  // namespace trainyard::kernels
