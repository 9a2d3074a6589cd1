#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) on one matrix:
// MuonMomentum, DivideByNorm, iterations of two products and a NewtonSchulz each, MuonStep. The
// matrix is the elements [offset, offset + n) of the parameter, its gradient and its velocity.

// g = gradient * grad_scale[0];  velocity += (1 - momentum) * (g - velocity)
//   y = nesterov ? g + momentum * (velocity - g) : velocity
template <typename T>
struct MuonMomentumOf {
  static constexpr const char* kName = "muon_momentum";
  T grad, velocity;  // [>= offset + n]
  T y;               // [n]
  T grad_scale;      // [1] f32, optional
  int64_t offset = 0, n = 0;
  float momentum = 0.95f;
  bool nesterov = true;
  TY_FIELDS(Read(grad), Update(velocity), Write(y), Read(grad_scale, Optional()), MayBeZero(offset),
            n, momentum, nesterov)
};
using MuonMomentum = MuonMomentumOf<Buffer>;

// x *= 1 / (sqrt(sum[0]) + epsilon), sum (f64) of the squares of x: the spectral norm is then at
// most 1.
template <typename T>
struct DivideByNormOf {
  static constexpr const char* kName = "divide_by_norm";
  T x, sum;
  int64_t n = 0;
  float epsilon = 1e-7f;
  TY_FIELDS(Update(x), Read(sum, F64), n, epsilon)
};
using DivideByNorm = DivideByNormOf<Buffer>;

// y = a I + b x + c y, x and y [n, n]. With x = X X^T and y = x x before the op, y X is the next
// iterate of X: its singular values s become a s + b s^3 + c s^5.
template <typename T>
struct NewtonSchulzOf {
  static constexpr const char* kName = "newton_schulz";
  T x, y;
  int64_t n = 0;
  float a = 0, b = 0, c = 0;
  TY_FIELDS(Read(x), Update(y), n, a, b, c)
};
using NewtonSchulz = NewtonSchulzOf<Buffer>;

// lr = state.learning_rate * learning_rate_scale
//   w = w - lr * weight_decay * w - lr * scale * x
template <typename T>
struct MuonStepOf {
  static constexpr const char* kName = "muon";
  T w;           // [>= offset + n]
  T x;           // [n]
  T grad_scale;  // [1] f32, optional: NaN if the step is not taken
  T state;       // StepState: learning_rate
  int64_t offset = 0, n = 0;
  float scale = 1, weight_decay = 0, learning_rate_scale = 1;
  TY_FIELDS(Update(w), Read(x), Read(grad_scale, Optional()), Read(state, State), MayBeZero(offset),
            n, scale, weight_decay, learning_rate_scale)
};
using MuonStep = MuonStepOf<Buffer>;

}  // namespace trainyard::kernels
