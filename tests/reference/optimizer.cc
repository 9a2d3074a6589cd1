#include "tests/reference/optimizer.h"

#include <cmath>

namespace trainyard::reference {

void SgdStep(const Vec& grad, double grad_scale, double lr, double momentum, double weight_decay,
             int64_t step, SgdState& state) {
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * grad_scale + weight_decay * state.w[i];
    if (momentum == 0) {
      state.w[i] -= lr * g;
      continue;
    }
    state.velocity[i] = step == 0 ? g : momentum * state.velocity[i] + g;
    state.w[i] -= lr * state.velocity[i];
  }
}

void AdamWStep(const Vec& grad, double grad_scale, const AdamWRates& rates, int64_t step,
               AdamWState& state) {
  const double t = static_cast<double>(step + 1);
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * grad_scale;
    state.w[i] -= rates.lr * rates.weight_decay * state.w[i];
    state.m[i] = rates.beta1 * state.m[i] + (1 - rates.beta1) * g;
    state.v[i] = rates.beta2 * state.v[i] + (1 - rates.beta2) * g * g;
    const double m = state.m[i] / (1 - std::pow(rates.beta1, t));
    const double v = state.v[i] / (1 - std::pow(rates.beta2, t));
    state.w[i] -= rates.lr * m / (std::sqrt(v) + rates.epsilon);
  }
}

}  // namespace trainyard::reference
