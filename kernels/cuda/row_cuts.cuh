#pragma once

// Sums over rows that are cut (kernels/ops/column_sum.h).

#include "kernels/cuda/tree_sum.cuh"
#include "kernels/scratch/cuda.h"

namespace trainyard::kernels::cuda {

// Calls sum(first, end, number) for the rows of each cut that has some, and returns how many do.
template <typename F>
int EachCut(int64_t rows, int64_t cuts, const F& sum) {
  int count = 0;
  for (int64_t cut = 0; cut < cuts; ++cut) {
    const int64_t first = rows * cut / cuts, end = rows * (cut + 1) / cuts;
    if (first < end) sum(first, end, count++);
  }
  return count;
}

// y[c] = the sum over the cuts of sums [count, cols] (+ y[c] when accumulate). A thread per column.
__global__ static void __launch_bounds__(kThreads)
    AddCutsKernel(const float* sums, float* y, int count, int64_t cols, bool accumulate) {
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  float all[1];
  SumInTree<0>(count, all, [&](int cut, float(&to)[1]) { to[0] = sums[cut * cols + col]; });
  y[col] = accumulate ? y[col] + all[0] : all[0];
}

inline void LaunchAddCuts(Stream& stream, const float* sums, float* y, int count, int64_t cols,
                          bool accumulate) {
  Launch(stream, ThreadForEach(cols), AddCutsKernel, sums, y, count, cols, accumulate);
}

}  // namespace trainyard::kernels::cuda
