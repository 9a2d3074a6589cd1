#pragma once

// One element of AdamW (kernels/ops/optimizer.h), for whole runs and for rows of tables.

#include "kernels/cuda/launch.cuh"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {

struct AdamWHyper {
  float beta1, beta2, epsilon, weight_decay, learning_rate_scale;
};

template <typename Op>
AdamWHyper HyperOf(const Op& op) {
  return {.beta1 = op.beta1,
          .beta2 = op.beta2,
          .epsilon = op.epsilon,
          .weight_decay = op.weight_decay,
          .learning_rate_scale = op.learning_rate_scale};
}

// With t = updates + 1: lr / (1 - beta1^t) and 1 / sqrt(1 - beta2^t).
struct AdamWCorrections {
  float step_size, inverse_root2;
};

// Once per op and not per block, in double: b^t loses its digits in fp32 for large t, and takes
// microseconds. Two threads, one for each beta.
__global__ static void AdamWCorrectionsKernel(AdamWHyper h, const StepState* state,
                                              AdamWCorrections* to) {
  const bool first = threadIdx.x == 0;
  const double correction = 1.0 - pow(static_cast<double>(first ? h.beta1 : h.beta2),
                                      static_cast<double>(state->updates + 1));
  if (first) {
    to->step_size = static_cast<float>(state->learning_rate * h.learning_rate_scale / correction);
  } else {
    to->inverse_root2 = static_cast<float>(1.0 / sqrt(correction));
  }
}

// Writes them to the stream's scratch, of which it takes kCorrectionBytes.
static_assert(sizeof(AdamWCorrections) == kCorrectionBytes);
inline const AdamWCorrections* LaunchCorrections(Stream& stream, const AdamWHyper& hyper,
                                                 const StepState* state) {
  auto* const to = static_cast<AdamWCorrections*>(stream.scratch);
  Launch(stream, {.grid = Blocks(1), .block = dim3(2)}, AdamWCorrectionsKernel, hyper, state, to);
  return to;
}

__device__ inline void AdamWElement(float g, const AdamWHyper& h, float lr,
                                    const AdamWCorrections& c, float& w, float& m, float& v) {
  const float decayed = w - lr * h.weight_decay * w;
  m = h.beta1 * m + (1.0f - h.beta1) * g;
  v = h.beta2 * v + (1.0f - h.beta2) * g * g;
  w = decayed - c.step_size * m / (sqrtf(v) * c.inverse_root2 + h.epsilon);
}

}  // namespace trainyard::kernels::cuda
