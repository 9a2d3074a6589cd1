#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// y[r, c] += bias[c]; y: [rows, cols], bias: [cols].
void LaunchAddBias(Stream& stream, const float* bias, float* y, int64_t rows, int64_t cols);

}  // namespace trainyard::kernels::cuda
