#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// You et al. 2019 (LAMB), algorithm 2 with bias correction and phi(z) = z, on one tensor, as
// NVIDIA's FusedLAMB. t = state.updates + 1, g = gradient * grad_scale[0], lr = state.learning_rate
// * learning_rate_scale
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + epsilon) + weight_decay * w
//   w -= lr * ratio * u;  ratio = |w| / |u|, but 1 when either norm is 0 or without `adapt`
// The norms are those of the elements [offset, offset + n), summed in double in a tree that depends
// on n only.
template <typename T>
struct LambStepOf {
  static constexpr const char* kName = "lamb";
  T w, grad, m, v;  // [>= offset + n]
  T grad_scale;     // [1] f32, optional
  T state;          // StepState: learning_rate, updates
  int64_t offset = 0, n = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-6f, weight_decay = 0, learning_rate_scale = 1;
  bool adapt = true;
  TY_FIELDS(Update(w), Read(grad), Update(m), Update(v), Read(grad_scale, Optional()),
            Read(state, State), MayBeZero(offset), n, beta1, beta2, epsilon, weight_decay,
            learning_rate_scale, adapt)
};
using LambStep = LambStepOf<Buffer>;

}  // namespace trainyard::kernels
