#pragma once

#include <cmath>

#include "kernels/cpu/vector/table.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {

// The step of `op` (AdamWStep, AdamWRows) on n elements; where they lie is left open.
template <typename Op>
AdamWRange AdamWRangeOf(const Op& op, int64_t n) {
  const StepState& state = *StepStateOf(op.state);
  const double t = static_cast<double>(state.updates + 1);
  const float lr = state.learning_rate * op.learning_rate_scale;
  return {.w = nullptr,
          .m = nullptr,
          .v = nullptr,
          .grad = nullptr,
          .n = n,
          .grad_scale = op.grad_scale ? *op.grad_scale.template As<float>() : 1.0f,
          .beta1 = op.beta1,
          .beta2 = op.beta2,
          .epsilon = op.epsilon,
          .decay = lr * op.weight_decay,
          .step_size = static_cast<float>(lr / (1.0 - std::pow(static_cast<double>(op.beta1), t))),
          .inverse_sqrt_c2 = static_cast<float>(
              1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(op.beta2), t)))};
}

}  // namespace trainyard::kernels
