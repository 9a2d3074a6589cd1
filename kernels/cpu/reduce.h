#pragma once

#include "kernels/device.h"

namespace trainyard::kernels {

// sum[0] = reduction of x (+ sum[0] when accumulate): one partial for each run of 8,192 elements,
// then neighbours are added pairwise until one is left. The tree depends on n only.
Kernel ReduceToDouble(int threads, double (*partial)(const float* x, int64_t n), const float* x,
                      int64_t n, double* sum, bool accumulate);

}  // namespace trainyard::kernels
