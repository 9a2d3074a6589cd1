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

template <bool kFirst, bool kNesterov>
TRAINYARD_INLINE void SgdWithMomentum(const SgdRange& r) {
  float* __restrict w = r.w;
  float* __restrict velocity = r.velocity;
  const float* __restrict grad = r.grad;
  const float grad_scale = r.grad_scale, lr = r.lr, decay = r.weight_decay, momentum = r.momentum;
  for (int64_t i = 0; i < r.n; ++i) {
    const float g = grad[i] * grad_scale + decay * w[i];
    const float v = kFirst ? g : momentum * velocity[i] + g;
    velocity[i] = v;
    w[i] -= lr * (kNesterov ? g + momentum * v : v);
  }
}

void Sgd(const SgdRange& r) {
  if (r.momentum == 0) {
    float* __restrict w = r.w;
    const float* __restrict grad = r.grad;
    const float grad_scale = r.grad_scale, lr = r.lr, decay = r.weight_decay;
    for (int64_t i = 0; i < r.n; ++i) w[i] -= lr * (grad[i] * grad_scale + decay * w[i]);
  } else if (r.first) {
    r.nesterov ? SgdWithMomentum<true, true>(r) : SgdWithMomentum<true, false>(r);
  } else {
    r.nesterov ? SgdWithMomentum<false, true>(r) : SgdWithMomentum<false, false>(r);
  }
}

void Ema(const float* w, float rest, float* average, int64_t n) {
  float* __restrict to = average;
  for (int64_t i = 0; i < n; ++i) to[i] += rest * (w[i] - to[i]);
}

void Scale(float a, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= a;
}

void Axpby(float b, const float* x, float c, float* y, int64_t n) {
  float* __restrict to = y;
  for (int64_t i = 0; i < n; ++i) to[i] = b * x[i] + c * to[i];
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
