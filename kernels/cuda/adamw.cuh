#pragma once

// One element of AdamW (kernels/ops/optimizer.h), for whole runs and for rows of tables.

#include "kernels/cuda/launch.cuh"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {

struct AdamWHyper {
  float beta1, beta2, epsilon, weight_decay, learning_rate_scale;
};

// Once per block: b^t loses its digits in fp32 for large t.
__device__ inline void BiasCorrections(const AdamWHyper& h, const StepState& state,
                                       float& step_size, float& inverse_root2) {
  const double t = static_cast<double>(state.updates + 1);
  const double correction1 = 1.0 - pow(static_cast<double>(h.beta1), t);
  const double correction2 = 1.0 - pow(static_cast<double>(h.beta2), t);
  step_size = static_cast<float>(state.learning_rate * h.learning_rate_scale / correction1);
  inverse_root2 = static_cast<float>(1.0 / sqrt(correction2));
}

__device__ inline void AdamWElement(float g, const AdamWHyper& h, float lr, float step_size,
                                    float inverse_root2, float& w, float& m, float& v) {
  const float decayed = w - lr * h.weight_decay * w;
  m = h.beta1 * m + (1.0f - h.beta1) * g;
  v = h.beta2 * v + (1.0f - h.beta2) * g * g;
  w = decayed - step_size * m / (sqrtf(v) * inverse_root2 + h.epsilon);
}

}  // namespace trainyard::kernels::cuda
