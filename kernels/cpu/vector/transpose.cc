#include "kernels/cpu/vector/transpose.h"

#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

void TransposeBlock(const float* x, int64_t rows, int64_t cols, int64_t x_stride, float* y,
                    int64_t y_stride) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    int64_t j = 0;
    for (; j + 4 <= cols; j += 4) {
      Transpose4x4(x + i * x_stride + j, x_stride, y + j * y_stride + i, y_stride);
    }
    for (; j < cols; ++j) {
      for (int64_t k = 0; k < 4; ++k) y[j * y_stride + i + k] = x[(i + k) * x_stride + j];
    }
  }
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) y[j * y_stride + i] = x[i * x_stride + j];
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
