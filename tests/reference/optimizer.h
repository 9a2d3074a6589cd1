#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

// Steps are counted from 0.

struct SgdState {
  Vec w, velocity;
};
struct SgdRates {
  double lr = 1e-3, momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
// velocity is not read at step 0.
void SgdStep(const Vec& grad, double grad_scale, const SgdRates& rates, int64_t step,
             SgdState& state);

struct AdamWState {
  Vec w, m, v;
};
struct AdamWRates {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};
void AdamWStep(const Vec& grad, double grad_scale, const AdamWRates& rates, int64_t step,
               AdamWState& state);

// `state` is one tensor; without `adapt` its trust ratio is 1.
void LambStep(const Vec& grad, double grad_scale, const AdamWRates& rates, bool adapt, int64_t step,
              AdamWState& state);

// What Muon makes orthogonal; updates velocity.
Vec MuonMomentum(const Vec& grad, double grad_scale, double momentum, bool nesterov, Vec& velocity);

// x [rows, cols] over its norm, and then with each singular value s mapped to
// 3.4445 s - 4.7750 s^3 + 2.0315 s^5 `iterations` times; as Jordan's zeropower_via_newtonschulz5.
Vec Orthogonalized(Vec x, int64_t rows, int64_t cols, int iterations);

void EmaStep(const Vec& w, double decay, bool warmup, int64_t step, Vec& average);

}  // namespace trainyard::reference
