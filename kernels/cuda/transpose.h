#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// y[b, j, i] = x[b, i, j] (+ y[b, j, i] when accumulate); x: [batch, rows, cols] of elements, y of
// the same, or f32.
void LaunchTranspose(Stream& stream, const Buffer& x, const Buffer& y, int64_t batch, int64_t rows,
                     int64_t cols, bool accumulate);

}  // namespace trainyard::kernels::cuda
