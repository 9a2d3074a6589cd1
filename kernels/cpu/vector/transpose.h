#pragma once

#include "kernels/cpu/vector/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA {

typedef float Quad __attribute__((vector_size(16)));
typedef float QuadMemory __attribute__((vector_size(16), aligned(4), may_alias));

// y[j * y_stride + i] = x[i * x_stride + j] for i, j < 4.
TRAINYARD_INLINE void Transpose4x4(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  const Quad a = *reinterpret_cast<const QuadMemory*>(x);
  const Quad b = *reinterpret_cast<const QuadMemory*>(x + x_stride);
  const Quad c = *reinterpret_cast<const QuadMemory*>(x + 2 * x_stride);
  const Quad d = *reinterpret_cast<const QuadMemory*>(x + 3 * x_stride);
  const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *reinterpret_cast<QuadMemory*>(y) = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  *reinterpret_cast<QuadMemory*>(y + y_stride) =
      __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  *reinterpret_cast<QuadMemory*>(y + 2 * y_stride) =
      __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  *reinterpret_cast<QuadMemory*>(y + 3 * y_stride) =
      __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

// y[j * y_stride + i] = x[i * x_stride + j] for i < rows, j < cols.
TRAINYARD_INLINE void TransposeBlock(const float* x, int64_t rows, int64_t cols, int64_t x_stride,
                                     float* y, int64_t y_stride) {
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

template <typename T>
TRAINYARD_INLINE void TransposeBlock(const T* x, int64_t rows, int64_t cols, int64_t x_stride, T* y,
                                     int64_t y_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) y[j * y_stride + i] = x[i * x_stride + j];
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
