#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::kernels::cuda {

// y[c] = sum over r of x[r, c] (+ y[c] when accumulate); x of elements, whose rows lie `step` of
// them apart (0: densely). Takes `scratch` of RowSumBytes(rows, cols) bytes. The order of
// addition is a function of rows, cols and the type of x.
void LaunchColumnSum(Stream& stream, const Buffer& x, float* y, int64_t rows, int64_t cols,
                     bool accumulate, void* scratch, int64_t step = 0);

}  // namespace trainyard::kernels::cuda
