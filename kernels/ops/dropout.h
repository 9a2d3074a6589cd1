#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = x * keep / (1 - p); y may be x. The backward pass is the same op on dy.
//   x, y: [samples, per_sample] E
//   keep(s, i) = uniform(seed, stream, step, first_sample + s, i) >= p
// If cols > 0, a sample is `cols` columns, those from first_col on, of a matrix with all_cols
// columns, and i counts in that matrix. If rows > 0 too, x and y have only so many rows of the
// samples' matrices, which lie one behind the other: those from first_row on.
// with seed, step and first_sample from `state` (a StepState) and the uniform of kernels/random.h:
// the same element is dropped whatever the rank, the micro-batch or the device.
template <typename T>
struct DropoutOf {
  static constexpr const char* kName = "dropout";
  T x, y;
  T state;              // StepState in device memory
  uint32_t stream = 0;  // distinct per dropout in the model
  int64_t samples = 0, per_sample = 0;
  float p = 0;  // in [0, 1)
  int64_t cols = 0, first_col = 0, all_cols = 0;
  int64_t rows = 0, first_row = 0;

  // Where cols > 0.
  int64_t all_rows() const { return samples * per_sample / cols; }
  int64_t rows_here() const { return rows > 0 ? rows : all_rows(); }

  const char* Problem() const {
    if (cols > 0 && (first_col + cols > all_cols || per_sample % cols != 0)) {
      return "the columns are not all of the matrix";
    }
    if (rows > 0 && (cols == 0 || first_row + rows > all_rows())) {
      return "the rows are not all of the samples";
    }
    return p >= 0 && p < 1 ? nullptr : "p is not in [0, 1)";
  }
  TY_FIELDS(Read(x, E), Write(y, E), Read(state, State), stream, samples, per_sample, p,
            MayBeZero(cols), MayBeZero(first_col), MayBeZero(all_cols), MayBeZero(rows),
            MayBeZero(first_row))
};
using Dropout = DropoutOf<Buffer>;

}  // namespace trainyard::kernels
