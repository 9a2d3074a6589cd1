#pragma once

// Sums over rows that are cut (kernels/ops/column_sum.h).

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/vector/table.h"

namespace trainyard::kernels {

// Adds `count` rows of sums [cols] into the first.
inline void AddCuts(const VectorTable& vectors, float* sums, int64_t count, int64_t cols) {
  for (int64_t width = 1; width < count; width *= 2) {
    for (int64_t i = 0; i + width < count; i += 2 * width) {
      vectors.f32.add(sums + i * cols, sums + (i + width) * cols, sums + i * cols, cols);
    }
  }
}

// Calls sum(first, end, to) for the rows of each cut, which overwrites to [cols]. The result is in
// the first row of `sums` [cuts, cols].
template <typename F>
void SumCuts(const VectorTable& vectors, int64_t rows, int64_t cols, int64_t cuts, float* sums,
             const F& sum) {
  int64_t count = 0;  // of cuts with rows
  for (int64_t cut = 0; cut < cuts; ++cut) {
    const int64_t first = rows * cut / cuts, end = rows * (cut + 1) / cuts;
    if (first < end) sum(first, end, sums + count++ * cols);
  }
  AddCuts(vectors, sums, count, cols);
}

// to (+)= sums, n elements.
inline void AddOrCopy(const VectorTable& vectors, const float* sums, float* to, int64_t n,
                      bool accumulate) {
  if (accumulate) {
    vectors.f32.add(to, sums, to, n);
  } else {
    std::copy(sums, sums + n, to);
  }
}

}  // namespace trainyard::kernels
