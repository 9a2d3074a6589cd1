#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// sum[0] (f64) = sum of squares of x (+ sum[0] when accumulate), in a fixed tree that depends on n
// only.
struct SquaredNorm {
  Buffer x, sum;
  int64_t n = 0;
  bool accumulate = false;
};

// norm[0] (f32) = sqrt(sum[0]); scale[0] (f32) = min(1, max_norm / (norm + 1e-6)) as PyTorch's
// clip_grad_norm_; 1 when max_norm is infinite.
struct ClipScale {
  Buffer sum, norm, scale;
  float max_norm = 0;
};

// Steps over a contiguous run of parameters. lr = state.learning_rate * learning_rate_scale

// As PyTorch's SGD. g = gradient * grad_scale[0] + weight_decay * w
//   momentum > 0: v = momentum * v + g (v = g at step 0), w -= lr * v, with nesterov
//   w -= lr * (g + momentum * v);  else w -= lr * g
struct SgdStep {
  Buffer w, grad, velocity;     // [n]; velocity optional when momentum is 0
  Buffer grad_scale;            // [1] f32, optional
  const void* state = nullptr;  // StepState: learning_rate, step
  int64_t n = 0;
  float momentum = 0, weight_decay = 0, learning_rate_scale = 1;
  bool nesterov = false;
};

// Loshchilov & Hutter 2019, as PyTorch's AdamW. t = step + 1, g = gradient * grad_scale[0]
//   w -= lr * weight_decay * w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
struct AdamWStep {
  Buffer w, grad, m, v;         // [n]
  Buffer grad_scale;            // [1] f32, optional
  const void* state = nullptr;  // StepState: learning_rate, step
  int64_t n = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0, learning_rate_scale = 1;
};

// Moving average of weights: average += r * (w - average),  r = 1 - decay
// With warm-up the decay is min(decay, (1 + step) / (10 + step)), as TensorFlow's
// ExponentialMovingAverage.
struct EmaStep {
  Buffer average, w;            // [n]
  const void* state = nullptr;  // StepState: step
  int64_t n = 0;
  double decay = 0;  // in [0, 1); 1 - 0.9999 loses its digits in fp32
  bool warmup = false;
};

}  // namespace trainyard::kernels
