#include "tests/reference/optimizer.h"

#include <algorithm>
#include <cmath>

#include "tests/reference/linear.h"

namespace trainyard::reference {

void SgdStep(const Vec& grad, double grad_scale, const SgdRates& rates, int64_t step,
             SgdState& state) {
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * grad_scale + rates.weight_decay * state.w[i];
    if (rates.momentum == 0) {
      state.w[i] -= rates.lr * g;
      continue;
    }
    double& v = state.velocity[i];
    v = step == 0 ? g : rates.momentum * v + g;
    state.w[i] -= rates.lr * (rates.nesterov ? g + rates.momentum * v : v);
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

void LambStep(const Vec& grad, double grad_scale, const AdamWRates& rates, bool adapt, int64_t step,
              AdamWState& state) {
  const double t = static_cast<double>(step + 1);
  Vec u(grad.size());
  double of_w = 0, of_u = 0;
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * grad_scale;
    state.m[i] = rates.beta1 * state.m[i] + (1 - rates.beta1) * g;
    state.v[i] = rates.beta2 * state.v[i] + (1 - rates.beta2) * g * g;
    const double m = state.m[i] / (1 - std::pow(rates.beta1, t));
    const double v = state.v[i] / (1 - std::pow(rates.beta2, t));
    u[i] = m / (std::sqrt(v) + rates.epsilon) + rates.weight_decay * state.w[i];
    of_w += state.w[i] * state.w[i];
    of_u += u[i] * u[i];
  }
  const double ratio = adapt && of_w > 0 && of_u > 0 ? std::sqrt(of_w) / std::sqrt(of_u) : 1;
  for (size_t i = 0; i < grad.size(); ++i) state.w[i] -= rates.lr * ratio * u[i];
}

Vec MuonMomentum(const Vec& grad, double grad_scale, double momentum, bool nesterov,
                 Vec& velocity) {
  Vec y(grad.size());
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * grad_scale;
    velocity[i] = momentum * velocity[i] + (1 - momentum) * g;
    y[i] = nesterov ? (1 - momentum) * g + momentum * velocity[i] : velocity[i];
  }
  return y;
}

Vec Orthogonalized(Vec x, int64_t rows, int64_t cols, int iterations) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::sqrt(squares) + 1e-7;
  for (int i = 0; i < iterations; ++i) {
    const Vec a = Matmul(x, x, rows, rows, cols, false, true);
    const Vec aa = Matmul(a, a, rows, rows, rows, false, false);
    const Vec ax = Matmul(a, x, rows, cols, rows, false, false);
    const Vec aax = Matmul(aa, x, rows, cols, rows, false, false);
    for (size_t j = 0; j < x.size(); ++j) {
      x[j] = 3.4445 * x[j] - 4.7750 * ax[j] + 2.0315 * aax[j];
    }
  }
  return x;
}

void EmaStep(const Vec& w, double decay, bool warmup, int64_t step, Vec& average) {
  const auto s = static_cast<double>(step);
  if (warmup) decay = std::min(decay, (1 + s) / (10 + s));
  for (size_t i = 0; i < w.size(); ++i) average[i] = decay * average[i] + (1 - decay) * w[i];
}

}  // namespace trainyard::reference
