#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) on one matrix:
// MuonMomentum, DivideByNorm, iterations of two products and a NewtonSchulz each, MuonStep. The
// matrix is the elements [offset, offset + n) of the parameter, its gradient and its velocity.

// g = gradient * grad_scale[0];  velocity += (1 - momentum) * (g - velocity)
//   y = nesterov ? g + momentum * (velocity - g) : velocity
struct MuonMomentum {
  Buffer grad, velocity;  // [>= offset + n]
  Buffer y;               // [n]
  Buffer grad_scale;      // [1] f32, optional
  int64_t offset = 0, n = 0;
  float momentum = 0.95f;
  bool nesterov = true;
};

// x *= 1 / (sqrt(sum[0]) + epsilon), sum (f64) of the squares of x: the spectral norm is then at
// most 1.
struct DivideByNorm {
  Buffer x, sum;
  int64_t n = 0;
  float epsilon = 1e-7f;
};

// y = a I + b x + c y, x and y [n, n]. With x = X X^T and y = x x before, y X is the next iterate
// of X: its singular values s become a s + b s^3 + c s^5.
struct NewtonSchulz {
  Buffer x, y;
  int64_t n = 0;
  float a = 0, b = 0, c = 0;
};

// lr = state.learning_rate * learning_rate_scale
//   w = w - lr * weight_decay * w - lr * scale * x
struct MuonStep {
  Buffer w;                     // [>= offset + n]
  Buffer x;                     // [n]
  Buffer grad_scale;            // [1] f32, optional: for whether the step is taken
  const void* state = nullptr;  // StepState: learning_rate
  int64_t offset = 0, n = 0;
  float scale = 1, weight_decay = 0, learning_rate_scale = 1;
};

}  // namespace trainyard::kernels
