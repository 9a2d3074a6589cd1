#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

struct SgdState {
  Vec w, velocity;
};
// step from 0; velocity is not read at step 0.
void SgdStep(const Vec& grad, double grad_scale, double lr, double momentum, double weight_decay,
             int64_t step, SgdState& state);

struct AdamWState {
  Vec w, m, v;
};
struct AdamWRates {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};
void AdamWStep(const Vec& grad, double grad_scale, const AdamWRates& rates, int64_t step,
               AdamWState& state);

}  // namespace trainyard::reference
