#pragma once

// Convolutions by Winograd's F(4x4, 3x3) on the CPU (cpu/winograd.h): which of them go that way,
// how their work is cut, and the scratch that takes.

#include <algorithm>

#include "kernels/ops/convolution.h"
#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::scratch {

// A tile of 4 by 4 pixels becomes a number in each of 36 planes. Planes lie a cache line more than
// a power of two apart, or the 36 numbers of a tile would share a set of the cache.
inline constexpr int64_t kWinogradPlanes = 36, kWinogradGap = 16;

constexpr int64_t WinogradTiles(const ConvolutionShape& s) {
  return s.batch * Ceil(s.height, 4) * Ceil(s.width, 4);
}

// Whether it takes a convolution: it needs a fourth of the multiplications, but transforms the
// weights first, which pays from about 64 tiles on. Its rounding error is about ten times that of
// the direct sum, still some 2e-6 of the norm. A tile that holds Inf or NaN becomes NaN as a whole.
constexpr bool SuitsWinograd(const ConvolutionShape& s) {
  return s.kernel_height == 3 && s.kernel_width == 3 && s.stride == 1 && s.pad == 1 &&
         s.groups == 1 && s.in % 16 == 0 && s.out % 16 == 0 && WinogradTiles(s) >= 64;
}

// Tiles that the second cache holds with their channels, but enough to be worth reading the weights
// for.
constexpr int64_t MostTilesOfUnit(const ConvolutionShape& s) {
  constexpr int64_t kFloats = int64_t{128} << 10, kLeast = 32;
  return std::max(kLeast, kFloats / (kWinogradPlanes * (s.in + s.out)) / 8 * 8);
}

// Tiles that a thread takes at a time: no more than leave work for every thread.
constexpr int64_t TilesOfUnit(const ConvolutionShape& s, int64_t threads) {
  return std::min(MostTilesOfUnit(s), RoundUp(Ceil(WinogradTiles(s), threads), 8));
}

// Forward, or by data: the transformed weights, and for `units` threads the planes of `tiles` tiles
// of them all, before and after the product.
constexpr int64_t WinogradProduct(const ConvolutionShape& s, int64_t tiles, int64_t units) {
  return kFloat * kWinogradPlanes *
         (s.in * s.out + kWinogradGap + tiles * (s.in + s.out) + units * 2 * kWinogradGap);
}
constexpr int64_t WinogradProduct(const ConvolutionShape& s, int64_t threads) {
  const int64_t each = TilesOfUnit(s, threads);
  const int64_t units = std::min(threads, Ceil(WinogradTiles(s), each));
  return WinogradProduct(s, units * each, units);
}
// The most that this is for 1 to `threads` threads: few tiles are cut evenly, in eights.
constexpr int64_t MostWinogradProduct(const ConvolutionShape& s, int64_t threads) {
  const int64_t tiles = std::min(threads * MostTilesOfUnit(s), WinogradTiles(s) + 8 * threads);
  return WinogradProduct(s, tiles, threads);
}

// Tiles of a pass of the gradient by weights: as many as have planes that the last cache holds.
constexpr int64_t TilesOfPass(const ConvolutionShape& s) {
  constexpr int64_t kFloats = int64_t{1} << 20, kLeast = 64;
  const int64_t most = std::max(kLeast, kFloats / (kWinogradPlanes * (s.in + s.out)) / 16 * 16);
  return std::min(RoundUp(WinogradTiles(s), 16), most);
}

// The gradient by weights: its sums, and the planes of a pass.
constexpr int64_t WinogradGradient(const ConvolutionShape& s) {
  return kFloat * kWinogradPlanes *
         (s.in * s.out + TilesOfPass(s) * (s.in + s.out) + 3 * kWinogradGap);
}

}  // namespace trainyard::kernels::scratch
