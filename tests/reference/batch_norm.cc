#include "tests/reference/batch_norm.h"

#include <algorithm>
#include <cmath>

namespace trainyard::reference {

BatchNormResult BatchNorm(const Vec& x, const Vec& gamma, const Vec& beta, const Vec& residual,
                          const BatchNormShape& s) {
  BatchNormResult out{{}, Vec(s.cols, 0.0), Vec(s.cols), Vec(s.cols, 0.0)};
  for (size_t i = 0; i < x.size(); ++i) out.mean[i % s.cols] += x[i] / s.rows;
  for (size_t i = 0; i < x.size(); ++i) {
    out.variance[i % s.cols] += std::pow(x[i] - out.mean[i % s.cols], 2) / s.rows;
  }
  for (int64_t c = 0; c < s.cols; ++c) out.rstd[c] = 1 / std::sqrt(out.variance[c] + s.epsilon);
  out.y = BatchNormInference(x, gamma, beta, residual, out.mean, out.variance, s);
  return out;
}

Vec BatchNormInference(const Vec& x, const Vec& gamma, const Vec& beta, const Vec& residual,
                       const Vec& mean, const Vec& variance, const BatchNormShape& s) {
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t c = i % s.cols;
    y[i] = (x[i] - mean[c]) / std::sqrt(variance[c] + s.epsilon) * gamma[c] + beta[c];
    if (!residual.empty()) y[i] += residual[i];
    if (s.relu) y[i] = std::max(y[i], 0.0);
  }
  return y;
}

BatchNormGradient BatchNormBackward(const Vec& dy, const Vec& x, const Vec& y, const Vec& gamma,
                                    const BatchNormShape& s) {
  const BatchNormResult forward = BatchNorm(x, gamma, Vec(s.cols, 0.0), {}, s);
  BatchNormGradient g{Vec(x.size()), dy, Vec(s.cols, 0.0), Vec(s.cols, 0.0)};
  const auto xhat = [&](size_t i) {
    return (x[i] - forward.mean[i % s.cols]) * forward.rstd[i % s.cols];
  };
  for (size_t i = 0; i < x.size(); ++i) {
    if (s.relu && !(y[i] > 0)) g.dresidual[i] = 0;
    g.dgamma[i % s.cols] += g.dresidual[i] * xhat(i);
    g.dbeta[i % s.cols] += g.dresidual[i];
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t c = i % s.cols;
    g.dx[i] = gamma[c] * forward.rstd[c] *
              (g.dresidual[i] - g.dbeta[c] / s.rows - xhat(i) * g.dgamma[c] / s.rows);
  }
  return g;
}

Vec Moved(const Vec& old, const Vec& now, double momentum) {
  Vec moved = old;
  for (size_t i = 0; i < moved.size(); ++i) moved[i] += momentum * (now[i] - old[i]);
  return moved;
}

Vec Unbiased(const Vec& variance, int64_t rows) {
  Vec unbiased = variance;
  for (double& v : unbiased) v *= static_cast<double>(rows) / static_cast<double>(rows - 1);
  return unbiased;
}

}  // namespace trainyard::reference
