#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// x, y: [rows, cols], y of E or f32; gamma, beta: [cols], beta optional; mean, rstd: [rows], kept
// for backward.
//   y = (x - mean) * rstd * gamma + beta,  rstd = 1 / sqrt(var + epsilon), var biased (Ba et al.
//   2016)
// Without mean it is RMSNorm (Zhang & Sennrich 2019), in both directions: mean counts as 0.
//
// residual, sum: [rows, cols], given both or neither. With them the op norms sum = x + residual and
// writes sum, too; all bits are those of Add followed by the norm. sum is f32; residual is f32 or
// E. sum may be x, or residual if that is f32; y may be residual if both are of one type and sum is
// not residual.
template <typename T>
struct LayerNormForwardOf {
  static constexpr const char* kName = "layer_norm";
  T x, residual, sum, gamma, beta, y, mean, rstd;
  int64_t rows = 0, cols = 0;
  float epsilon = 1e-5f;

  const char* Problem() const {
    return !residual == !sum ? nullptr : "residual and sum are not given together";
  }
  TY_FIELDS(Read(x), Read(residual, Optional(EOrF32)), Read(gamma), Read(beta, Optional()),
            Write(sum, Optional()), Write(y, EOrF32), Write(mean, Optional()), Write(rstd), rows,
            cols, epsilon)
};
using LayerNormForward = LayerNormForwardOf<Buffer>;

// dx (+)= gradient by x; dgamma (+)= sum of dy * xhat; dbeta (+)= sum of dy. Each is optional.
// The order of the sums over rows is a function of rows, cols and cuts only, as in
// kernels/ops/column_sum.h. dy is of E; dx may be dy when both are f32 and it is not accumulated
// into.
template <typename T>
struct LayerNormBackwardOf {
  static constexpr const char* kName = "layer_norm_backward";
  T dy, x, gamma, mean, rstd, dx, dgamma, dbeta;
  int64_t rows = 0, cols = 0;
  bool accumulate_dx = false;  // a residual branch already left its gradient in dx
  bool accumulate_params = false;
  int64_t cuts = 1;

  const char* Problem() const {
    const bool adds_to_what_it_reads = accumulate_dx && dx.data == dy.data;
    return adds_to_what_it_reads ? "dx is dy and accumulated into" : nullptr;
  }
  TY_FIELDS(Read(dy, E), Read(x), Read(gamma), Read(mean, Optional()), Read(rstd),
            WriteOrAdd(dx, accumulate_dx, Optional()),
            WriteOrAdd(dgamma, accumulate_params, Optional()),
            WriteOrAdd(dbeta, accumulate_params, Optional()), rows, cols, accumulate_dx,
            accumulate_params, cuts)
};
using LayerNormBackward = LayerNormBackwardOf<Buffer>;

}  // namespace trainyard::kernels
