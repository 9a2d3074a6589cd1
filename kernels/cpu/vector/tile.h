#pragma once

// A small serial matrix product for operands that lie in the first or second cache.

#include "kernels/cpu/vector/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Registers for accumulators: 16 of 32 with AVX-512, else 8 of 16. A tile is two vectors wide where
// b is.
inline constexpr int kTileSums = kLanes == 16 ? 16 : 8;

// c[i * c_row + j] (+)= sum over p < depth of a[i * a_row + p * a_step] * b[p * b_row + j]
// for i < rows and j < cols, a multiple of kLanes.
struct TileProduct {
  const float* a;
  int64_t a_row, a_step;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t rows, cols, depth;
};

template <int kRows, int kVectors, bool kAccumulate>
TRAINYARD_INLINE void Tile(const TileProduct& t, int64_t row, int64_t col) {
  VecF sums[kRows][kVectors] = {};
  const float* a = t.a + row * t.a_row;
  const float* b = t.b + col;
  for (int64_t p = 0; p < t.depth; ++p) {
    VecF bs[kVectors];
    for (int j = 0; j < kVectors; ++j) bs[j] = Load(b + p * t.b_row + j * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const VecF ai = Splat(a[i * t.a_row + p * t.a_step]);
      for (int j = 0; j < kVectors; ++j) sums[i][j] += ai * bs[j];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      float* c = t.c + (row + i) * t.c_row + col + j * kLanes;
      Store(c, kAccumulate ? Load(c) + sums[i][j] : sums[i][j]);
    }
  }
}

template <int kVectors, bool kAccumulate>
TRAINYARD_INLINE void TileColumn(const TileProduct& t, int64_t col) {
  constexpr int kRows = kTileSums / kVectors;
  int64_t row = 0;
  for (; row + kRows <= t.rows; row += kRows) Tile<kRows, kVectors, kAccumulate>(t, row, col);
  for (; row < t.rows; ++row) Tile<1, kVectors, kAccumulate>(t, row, col);
}

template <bool kAccumulate>
TRAINYARD_INLINE void Multiply(const TileProduct& t) {
  int64_t col = 0;
  for (; col + 2 * kLanes <= t.cols; col += 2 * kLanes) TileColumn<2, kAccumulate>(t, col);
  if (col < t.cols) TileColumn<1, kAccumulate>(t, col);
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
