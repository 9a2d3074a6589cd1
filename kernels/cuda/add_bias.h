#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// AddBias, for other ops.
void LaunchAddBias(Stream& stream, const float* x, const float* bias, float* y, int64_t rows,
                   int64_t cols);

}  // namespace trainyard::kernels::cuda
