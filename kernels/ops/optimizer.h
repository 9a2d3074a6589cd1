#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// sum[0] (f64) = sum of squares of x, [n] E (+ sum[0] when accumulate), in a fixed tree that
// depends on n only.
struct SquaredNorm {
  Buffer x, sum;
  int64_t n = 0;
  bool accumulate = false;
};

// What the summed gradient is multiplied by in the update. The gradient is a sum over `rows`
// targets, each times 1 / rows, of which count[0] (f64) counted, and times state.loss_scale where
// state (a StepState) is given: times factor = rows / count / loss_scale it is their mean; rows /
// count is 1 when count is absent or 0.
//   norm[0] (f32) = sqrt(sum[0]) * factor
//   scale[0] (f32) = factor * min(1, max_norm / (norm + 1e-6)) as PyTorch's clip_grad_norm_; factor
//     when max_norm is infinite
// NaN is the scale of a step that is not to be taken: when norm or loss[0] (f64, optional) is not
// finite, or scale[0] was NaN before, which lasts until whoever trains has seen it. What an update
// writes, its scratch apart, stays as it is when its grad_scale is NaN: this file's steps and those
// of lamb.h, muon.h and row_optimizer.h, and CopyIfTaken.
struct ClipScale {
  Buffer sum, count, loss, norm, scale;
  const void* state = nullptr;
  int64_t rows = 0;
  float max_norm = 0;
};

// Steps over a contiguous run of parameters, by gradients of E. All else is fp32. Where `copy` [n]
// of bf16 or f16 is given, it becomes w, rounded. lr = state.learning_rate * learning_rate_scale

// As PyTorch's SGD. g = gradient * grad_scale[0] + weight_decay * w
//   momentum > 0: v = momentum * v + g (v = g at the first update), w -= lr * v, with nesterov
//   w -= lr * (g + momentum * v);  else w -= lr * g
struct SgdStep {
  Buffer w, grad, velocity;     // [n], grad E; velocity optional when momentum is 0
  Buffer grad_scale;            // [1] f32, optional
  const void* state = nullptr;  // learning_rate, updates
  Buffer copy;
  int64_t n = 0;
  float momentum = 0, weight_decay = 0, learning_rate_scale = 1;
  bool nesterov = false;
};

// Loshchilov & Hutter 2019, as PyTorch's AdamW. t = state.updates + 1, g = gradient * grad_scale[0]
//   w -= lr * weight_decay * w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
struct AdamWStep {
  Buffer w, grad, m, v;         // [n], grad E
  Buffer grad_scale;            // [1] f32, optional
  const void* state = nullptr;  // learning_rate, updates
  Buffer copy;
  int64_t n = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0, learning_rate_scale = 1;
};

// Moving average of weights: average += r * (w - average),  r = 1 - decay
// With warm-up the decay is min(decay, (1 + step) / (10 + step)), as TensorFlow's
// ExponentialMovingAverage.
struct EmaStep {
  Buffer average, w;            // [n]
  Buffer grad_scale;            // [1] f32, optional: for whether the step is taken
  const void* state = nullptr;  // StepState: step
  int64_t n = 0;
  double decay = 0;  // in [0, 1); 1 - 0.9999 loses its digits in fp32
  bool warmup = false;
};

}  // namespace trainyard::kernels
