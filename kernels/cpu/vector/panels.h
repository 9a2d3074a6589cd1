#pragma once

// Matrix products of operands packed in panels, the way of Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (2008): a panel holds kLanes columns of an operand, one
// vector for each step of the sum. A tile of the result stays in registers while two panels stream
// by.

#include "kernels/cpu/vector/simd.h"
#include "kernels/cpu/vector/table.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// A tile: kTileRows x kTileVectors accumulators, 24 of AVX-512's 32 registers, 12 of 16 elsewhere.
inline constexpr int kTileRows = kLanes == 16 ? 8 : 4;
inline constexpr int kTileVectors = 3;

TRAINYARD_INLINE int64_t PanelsOf(int64_t cols) { return (cols + kLanes - 1) / kLanes; }

// Packs `depth` rows of `cols` elements into panels: the p-th row that next() returns is step p of
// them, panels[j][p][lane], and each panel is `depth` steps long. A null row counts as zeros;
// columns of the last panel that do not exist are 0.
template <typename T, typename F>
TRAINYARD_INLINE void PackPanels(F next, int64_t depth, int64_t cols, float* panels) {
  const int64_t whole = cols / kLanes, left = cols % kLanes;
  for (int64_t p = 0; p < depth; ++p) {
    const T* const row = next();
    float* to = panels + p * kLanes;
    if (row == nullptr) {
      for (int64_t j = 0; j < PanelsOf(cols); ++j, to += depth * kLanes) Store(to, VecF{});
      continue;
    }
    for (int64_t j = 0; j < whole; ++j, to += depth * kLanes) Store(to, Load(row + j * kLanes));
    if (left > 0) Store(to, LoadPart(row + whole * kLanes, left));
  }
}

template <int kVectors>
TRAINYARD_INLINE void WholeTile(const PanelProduct& t, const float* a, const float* b, float* c,
                                int64_t c_row, bool accumulate) {
  VecF sums[kTileRows][kVectors] = {};
  for (int64_t p = 0; p < t.depth; ++p, a += t.a_step, b += kLanes) {
    VecF bs[kVectors];
    for (int j = 0; j < kVectors; ++j) bs[j] = Load(b + j * t.b_panel);
    for (int i = 0; i < kTileRows; ++i) {
      const VecF ai = Splat(a[i * t.a_row]);
      for (int j = 0; j < kVectors; ++j) sums[i][j] += ai * bs[j];
    }
  }
  for (int i = 0; i < kTileRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      float* const to = c + i * c_row + j * kLanes;
      Store(to, accumulate ? Load(to) + sums[i][j] : sums[i][j]);
    }
  }
}

// The tile at (row, col) of the result, as much of it as exists.
template <int kVectors>
TRAINYARD_INLINE void MultiplyTile(const PanelProduct& t, int64_t row, int64_t col) {
  constexpr int64_t kCols = kVectors * kLanes;
  const float* const a = t.a + row / kLanes * t.a_panel + row % kLanes * t.a_row;
  const float* const b = t.b + col / kLanes * t.b_panel;
  float* const c = t.c + row * t.c_row + col;
  const int64_t rows = t.rows - row, cols = t.cols - col;
  if (rows >= kTileRows && cols >= kCols) {
    WholeTile<kVectors>(t, a, b, c, t.c_row, t.accumulate);
    return;
  }
  float whole[kTileRows * kCols];
  WholeTile<kVectors>(t, a, b, whole, kCols, false);
  for (int64_t i = 0; i < kTileRows && i < rows; ++i) {
    for (int64_t j = 0; j < kCols && j < cols; ++j) {
      float& to = c[i * t.c_row + j];
      to = t.accumulate ? to + whole[i * kCols + j] : whole[i * kCols + j];
    }
  }
}

// These panels of b stay in the L1 cache while those of a stream by.
template <int kVectors, typename F>
TRAINYARD_INLINE void MultiplyColumn(const PanelProduct& t, int64_t col, F& after_tile) {
  for (int64_t row = 0; row < t.rows; row += kTileRows) {
    MultiplyTile<kVectors>(t, row, col);
    after_tile();
  }
}

TRAINYARD_INLINE int64_t TilesOf(int64_t rows, int64_t cols) {
  constexpr int64_t kWide = kTileVectors * kLanes;
  return (rows + kTileRows - 1) / kTileRows * ((cols + kWide - 1) / kWide);
}

// Calls after_tile() TilesOf(rows, cols) times on the way, for prefetching what comes next.
template <typename F>
TRAINYARD_INLINE void MultiplyPanels(const PanelProduct& t, F after_tile) {
  int64_t col = 0;
  for (; t.cols - col > 2 * kLanes; col += kTileVectors * kLanes) {
    MultiplyColumn<3>(t, col, after_tile);
  }
  if (t.cols - col > kLanes) {
    MultiplyColumn<2>(t, col, after_tile);
  } else if (t.cols > col) {
    MultiplyColumn<1>(t, col, after_tile);
  }
}

// Prefetches n elements into the L2 cache.
template <typename T>
TRAINYARD_INLINE void Fetch(const T* p, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(p + i, 0, 2);
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
