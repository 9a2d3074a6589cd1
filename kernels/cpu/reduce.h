#pragma once

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/device.h"
#include "kernels/scratch/sums.h"

namespace trainyard::kernels {

// Adds neighbouring partials pairwise, in place, until one is left, and returns it; 0 when there
// are none.
double SumPairwise(double* partials, int64_t count);

// sum[0] = reduction of x (+ sum[0] when accumulate): one partial for each run of 8,192 elements,
// then SumPairwise. The tree depends on n only. T: an element.
template <typename T>
Kernel ReduceToDouble(int threads, double (*partial)(const T* x, int64_t n), const T* x, int64_t n,
                      double* sum, bool accumulate) {
  constexpr int64_t kEach = scratch::kReductionRun;
  const int64_t count = scratch::Ceil(n, kEach);
  Kernel kernel;
  kernel.scratch_bytes = scratch::Reduction(n);
  kernel.launch = [=](Stream& stream) {
    double* const partials = static_cast<double*>(stream.scratch);
    ParallelFor(threads, count, 4, [&](int64_t i) {
      partials[i] = partial(x + i * kEach, std::min(kEach, n - i * kEach));
    });
    const double total = SumPairwise(partials, count);
    *sum = accumulate ? *sum + total : total;
  };
  return kernel;
}

}  // namespace trainyard::kernels
