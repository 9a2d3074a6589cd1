#pragma once

// A small serial matrix product for operands that lie in the first or second cache.

#include "kernels/cpu/vector/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Rows of accumulators in registers: 8 x 2 of 32, or 4 x 2 of 16.
inline constexpr int kTileRows = kLanes == 16 ? 8 : 4;

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

template <int kRows, bool kAccumulate>
TRAINYARD_INLINE void TileRow(const TileProduct& t, int64_t row) {
  int64_t col = 0;
  for (; col + 2 * kLanes <= t.cols; col += 2 * kLanes) Tile<kRows, 2, kAccumulate>(t, row, col);
  if (col < t.cols) Tile<kRows, 1, kAccumulate>(t, row, col);
}

template <bool kAccumulate>
TRAINYARD_INLINE void Multiply(const TileProduct& t) {
  int64_t row = 0;
  for (; row + kTileRows <= t.rows; row += kTileRows) TileRow<kTileRows, kAccumulate>(t, row);
  for (; row < t.rows; ++row) TileRow<1, kAccumulate>(t, row);
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
