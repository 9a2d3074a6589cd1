#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// AddBias, for other ops; x and y have the same element type.
void LaunchAddBias(Stream& stream, const Buffer& x, const float* bias, const Buffer& y,
                   int64_t rows, int64_t cols);

}  // namespace trainyard::kernels::cuda
