#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

TRAINYARD_INLINE float UpdateOf(const LambRange& r, float w, float m, float v) {
  return m * r.inverse_c1 / (__builtin_sqrtf(v) * r.inverse_sqrt_c2 + r.epsilon) +
         r.weight_decay * w;
}

LambSquares LambMoments(const LambRange& range) {
  constexpr int64_t kEach = 512;  // updates that wait in the first cache to be summed
  const LambRange r = range;
  const float rest1 = 1.0f - r.beta1, rest2 = 1.0f - r.beta2;
  float u[kEach];
  LambSquares squares = {0, 0};
  for (int64_t first = 0; first < r.n; first += kEach) {
    const int64_t n = r.n - first < kEach ? r.n - first : kEach;
    const float* __restrict w = r.w + first;
    float* __restrict m = r.m + first;
    float* __restrict v = r.v + first;
    const float* __restrict grad = r.grad + first;
    for (int64_t i = 0; i < n; ++i) {
      const float g = grad[i] * r.grad_scale;
      const float mi = r.beta1 * m[i] + rest1 * g;
      const float vi = r.beta2 * v[i] + rest2 * g * g;
      m[i] = mi;
      v[i] = vi;
      u[i] = UpdateOf(r, w[i], mi, vi);
    }
    squares.w += SquaredNormOfRange(w, n);
    squares.u += SquaredNormOfRange(u, n);
  }
  return squares;
}

void LambStepOfRange(const LambRange& range, float rate) {
  const LambRange r = range;
  float* __restrict w = r.w;
  const float* __restrict m = r.m;
  const float* __restrict v = r.v;
  for (int64_t i = 0; i < r.n; ++i) w[i] -= rate * UpdateOf(r, w[i], m[i], v[i]);
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
