#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Plain loops that the compiler vectorises: square root and division dominate.
void AdamW(const AdamWRange& r) {
  float* __restrict w = r.w;
  float* __restrict m = r.m;
  float* __restrict v = r.v;
  const float* __restrict grad = r.grad;
  const float grad_scale = r.grad_scale, beta1 = r.beta1, beta2 = r.beta2;
  const float rest1 = 1.0f - r.beta1, rest2 = 1.0f - r.beta2;
  const float decay = r.decay, step_size = r.step_size;
  const float inverse_sqrt_c2 = r.inverse_sqrt_c2, epsilon = r.epsilon;
  for (int64_t i = 0; i < r.n; ++i) {
    const float g = grad[i] * grad_scale;
    const float mi = beta1 * m[i] + rest1 * g;
    const float vi = beta2 * v[i] + rest2 * g * g;
    const float wi = w[i] - decay * w[i];
    m[i] = mi;
    v[i] = vi;
    w[i] = wi - step_size * mi / (__builtin_sqrtf(vi) * inverse_sqrt_c2 + epsilon);
  }
}

void Sgd(const SgdRange& r) {
  float* __restrict w = r.w;
  const float* __restrict grad = r.grad;
  const float grad_scale = r.grad_scale, lr = r.lr, decay = r.weight_decay;
  if (r.momentum == 0) {
    for (int64_t i = 0; i < r.n; ++i) w[i] -= lr * (grad[i] * grad_scale + decay * w[i]);
    return;
  }
  float* __restrict velocity = r.velocity;
  const float momentum = r.momentum;
  if (r.first) {
    for (int64_t i = 0; i < r.n; ++i) {
      velocity[i] = grad[i] * grad_scale + decay * w[i];
      w[i] -= lr * velocity[i];
    }
    return;
  }
  for (int64_t i = 0; i < r.n; ++i) {
    velocity[i] = momentum * velocity[i] + (grad[i] * grad_scale + decay * w[i]);
    w[i] -= lr * velocity[i];
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
