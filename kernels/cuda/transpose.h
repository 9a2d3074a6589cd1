#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// y[b, j, i] = x[b, i, j] (+ y[b, j, i] when accumulate); x: [batch, rows, cols].
void LaunchTranspose(Stream& stream, const float* x, float* y, int64_t batch, int64_t rows,
                     int64_t cols, bool accumulate);

}  // namespace trainyard::kernels::cuda
