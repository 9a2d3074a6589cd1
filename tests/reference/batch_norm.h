#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

struct BatchNormShape {
  int64_t rows = 0, cols = 0;
  double epsilon = 1e-5;
  bool relu = false;
};

struct BatchNormResult {
  Vec y, mean, rstd, variance;  // variance: biased
};
// residual may be empty.
BatchNormResult BatchNorm(const Vec& x, const Vec& gamma, const Vec& beta, const Vec& residual,
                          const BatchNormShape& s);

// With a mean and a variance that are given.
Vec BatchNormInference(const Vec& x, const Vec& gamma, const Vec& beta, const Vec& residual,
                       const Vec& mean, const Vec& variance, const BatchNormShape& s);

struct BatchNormGradient {
  Vec dx, dresidual, dgamma, dbeta;
};
// y may be empty without relu.
BatchNormGradient BatchNormBackward(const Vec& dy, const Vec& x, const Vec& y, const Vec& gamma,
                                    const BatchNormShape& s);

// What is left of a running statistic: old + momentum * (now - old).
Vec Moved(const Vec& old, const Vec& now, double momentum);
// The unbiased variance.
Vec Unbiased(const Vec& variance, int64_t rows);

}  // namespace trainyard::reference
