#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

void MuonMomentumOfRange(const MuonRange& r) {
  float* __restrict velocity = r.velocity;
  float* __restrict y = r.y;
  const float* __restrict grad = r.grad;
  const float grad_scale = r.grad_scale, momentum = r.momentum, rest = 1.0f - r.momentum;
  const bool nesterov = r.nesterov;
  for (int64_t i = 0; i < r.n; ++i) {
    const float g = grad[i] * grad_scale;
    const float v = velocity[i] + rest * (g - velocity[i]);
    velocity[i] = v;
    y[i] = nesterov ? g + momentum * (v - g) : v;
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
