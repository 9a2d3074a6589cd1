#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

struct LayerNormResult {
  Vec y, mean, rstd;
};
// beta may be empty. Not `centred` is RMSNorm: the mean counts as 0.
LayerNormResult LayerNorm(const Vec& x, const Vec& gamma, const Vec& beta, int64_t rows,
                          int64_t cols, double epsilon, bool centred = true);

struct LayerNormGradient {
  Vec dx, dgamma, dbeta;
};
LayerNormGradient LayerNormBackward(const Vec& dy, const Vec& x, const Vec& gamma, int64_t rows,
                                    int64_t cols, double epsilon, bool centred = true);

}  // namespace trainyard::reference
