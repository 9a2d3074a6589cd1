#pragma once

#include "kernels/device.h"

namespace trainyard::kernels {

// Adds neighbouring partials pairwise, in place, until one is left, and returns it; 0 when there
// are none.
double SumPairwise(double* partials, int64_t count);

// sum[0] = reduction of x (+ sum[0] when accumulate): one partial for each run of 8,192 elements,
// then SumPairwise. The tree depends on n only. T: an element.
template <typename T>
Kernel ReduceToDouble(int threads, double (*partial)(const T* x, int64_t n), const T* x, int64_t n,
                      double* sum, bool accumulate);

}  // namespace trainyard::kernels
