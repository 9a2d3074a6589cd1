#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Batch norm (Ioffe & Szegedy 2015) of [rows, cols], one row per sample and pixel, one column per
// channel, with what follows it in a residual network: another branch added, then relu.
//   y = relu?((x - mean) * rstd * gamma + beta + residual?),  rstd = 1 / sqrt(var + epsilon)
// x, residual, y: [rows, cols] E, residual optional; gamma, beta, mean, rstd, running_mean,
// running_var: [cols]. y may be residual.

// mean and var (biased) are those of the rows, of which there are at least 2; mean and rstd are
// kept for backward.
//   running_mean += momentum * (mean - running_mean)
//   running_var  += momentum * (var * rows / (rows - 1) - running_var)   (unbiased, as PyTorch)
// The order of the sums over rows is a function of rows and cols only.
//
// With `again` it repeats an earlier run: it reads the mean and rstd that the first run wrote,
// gives the same bits of y, and has no running statistics.
template <typename T>
struct BatchNormForwardOf {
  static constexpr const char* kName = "batch_norm";
  T x, gamma, beta, residual, y, mean, rstd, running_mean, running_var;
  int64_t rows = 0, cols = 0;
  float epsilon = 1e-5f, momentum = 0.1f;
  bool relu = false, again = false;

  const char* Problem() const { return rows > 1 ? nullptr : "one row has no variance"; }
  constexpr Access moments() const { return again ? Access::kRead : Access::kWrite; }
  TY_FIELDS(Read(x, E), Read(gamma), Read(beta), Read(residual, Optional(E)), Write(y, E),
            Touch(mean, moments()), Touch(rstd, moments()), Update(running_mean, OptionalIf(again)),
            Update(running_var, OptionalIf(again)), rows, cols, epsilon, momentum, relu, again)
};
using BatchNormForward = BatchNormForwardOf<Buffer>;

// The same with running_mean and running_var in place of mean and var; y may be x, too.
template <typename T>
struct BatchNormInferenceOf {
  static constexpr const char* kName = "batch_norm_inference";
  T x, gamma, beta, residual, running_mean, running_var, y;
  int64_t rows = 0, cols = 0;
  float epsilon = 1e-5f;
  bool relu = false;
  TY_FIELDS(Read(x, E), Read(gamma), Read(beta), Read(residual, Optional(E)), Read(running_mean),
            Read(running_var), Write(y, E), rows, cols, epsilon, relu)
};
using BatchNormInference = BatchNormInferenceOf<Buffer>;

// g = dy where y > 0, else 0; without `y` (there was no relu) g = dy. xhat = (x - mean) * rstd.
//   dresidual = g; dgamma (+)= sum of g * xhat; dbeta (+)= sum of g
//   dx = gamma * rstd * (g - mean of g - xhat * mean of g * xhat), the means over the rows
// dy, x, y, dx, dresidual: E. Each result is optional. dx may be x, dresidual may be dy. The order
// of the sums is a function of rows and cols only.
template <typename T>
struct BatchNormBackwardOf {
  static constexpr const char* kName = "batch_norm_backward";
  T dy, x, y, gamma, mean, rstd, dx, dresidual, dgamma, dbeta;
  int64_t rows = 0, cols = 0;
  bool accumulate_params = false;
  TY_FIELDS(Read(dy, E), Read(x, E), Read(y, Optional(E)), Read(gamma), Read(mean), Read(rstd),
            Write(dx, Optional(E)), Write(dresidual, Optional(E)),
            WriteOrAdd(dgamma, accumulate_params, Optional()),
            WriteOrAdd(dbeta, accumulate_params, Optional()), rows, cols, accumulate_params)
};
using BatchNormBackward = BatchNormBackwardOf<Buffer>;

}  // namespace trainyard::kernels
