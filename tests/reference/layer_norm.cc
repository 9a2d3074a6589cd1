#include "tests/reference/layer_norm.h"

#include <cmath>

namespace trainyard::reference {

LayerNormResult LayerNorm(const Vec& x, const Vec& gamma, const Vec& beta, int64_t rows,
                          int64_t cols, double epsilon, bool centred) {
  LayerNormResult out{Vec(rows * cols), Vec(rows), Vec(rows)};
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; centred && c < cols; ++c) mean += x[r * cols + c] / cols;
    for (int64_t c = 0; c < cols; ++c) variance += std::pow(x[r * cols + c] - mean, 2) / cols;
    out.mean[r] = mean;
    out.rstd[r] = 1 / std::sqrt(variance + epsilon);
    for (int64_t c = 0; c < cols; ++c) {
      out.y[r * cols + c] =
          (x[r * cols + c] - mean) * out.rstd[r] * gamma[c] + (beta.empty() ? 0.0 : beta[c]);
    }
  }
  return out;
}

LayerNormGradient LayerNormBackward(const Vec& dy, const Vec& x, const Vec& gamma, int64_t rows,
                                    int64_t cols, double epsilon, bool centred) {
  const LayerNormResult forward = LayerNorm(x, gamma, {}, rows, cols, epsilon, centred);
  LayerNormGradient g{Vec(rows * cols), Vec(cols, 0.0), Vec(cols, 0.0)};
  for (int64_t r = 0; r < rows; ++r) {
    const double rstd = forward.rstd[r];
    const auto xhat = [&](int64_t c) { return (x[r * cols + c] - forward.mean[r]) * rstd; };
    double mean_g = 0, mean_dot = 0;
    for (int64_t c = 0; c < cols; ++c) {
      if (centred) mean_g += dy[r * cols + c] * gamma[c] / cols;
      mean_dot += dy[r * cols + c] * gamma[c] * xhat(c) / cols;
    }
    for (int64_t c = 0; c < cols; ++c) {
      g.dx[r * cols + c] = rstd * (dy[r * cols + c] * gamma[c] - mean_g - xhat(c) * mean_dot);
      g.dgamma[c] += dy[r * cols + c] * xhat(c);
      g.dbeta[c] += dy[r * cols + c];
    }
  }
  return g;
}

}  // namespace trainyard::reference
