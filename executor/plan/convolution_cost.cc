#include "executor/plan/convolution_cost.h"

#include <algorithm>

#include "executor/plan/scratch.h"

namespace trainyard::plan {
namespace {

bool IsDepthwise(const ConvolutionShape& s) { return s.groups == s.in && s.groups == s.out; }

int64_t WindowBytes(const ConvolutionShape& s) { return kFloat * s.kernel_height * s.kernel_width; }

// Weights in blocks of 16 channels by 16, or by one.
int64_t BlockedWeightBytes(const ConvolutionShape& s) {
  if (IsDepthwise(s)) return WindowBytes(s) * RoundUp(s.groups, 16);
  return WindowBytes(s) * s.groups * RoundUp(s.in / s.groups, 16) * RoundUp(s.out / s.groups, 16);
}

// What a window of one pixel reads in steps, put side by side, per thread.
int64_t GatheredBytes(const ConvolutionShape& s) {
  const bool gathers = s.kernel_height == 1 && s.kernel_width == 1 && s.stride > 1;
  return gathers ? kThreads * kFloat * s.in * OutHeight(s) * OutWidth(s) : 0;
}

int64_t WinogradTiles(const ConvolutionShape& s) {
  return s.batch * Ceil(s.height, 4) * Ceil(s.width, 4);
}

// Winograd's F(4x4, 3x3): 36 planes of the weights or their gradient, and of some tiles with all
// their channels: per thread, or for the gradient by weights of a pass; a gap of 16 between planes.
constexpr int64_t kPlanes = 36, kGap = 16;

}  // namespace

int64_t OutHeight(const ConvolutionShape& s) {
  return (s.height + 2 * s.pad - s.kernel_height) / s.stride + 1;
}

int64_t OutWidth(const ConvolutionShape& s) {
  return (s.width + 2 * s.pad - s.kernel_width) / s.stride + 1;
}

double ConvolutionFlops(const ConvolutionShape& s) {
  return 2.0 * static_cast<double>(s.batch * OutHeight(s) * OutWidth(s)) *
         static_cast<double>(s.out * (s.in / s.groups)) *
         static_cast<double>(s.kernel_height * s.kernel_width);
}

int64_t InputBytes(const ConvolutionShape& s) {
  return kFloat * s.batch * s.height * s.width * s.in;
}

int64_t DirectBytes(const ConvolutionShape& s) {
  constexpr int64_t kEdges = 8 << 10;  // what is padded to whole blocks, per thread
  return 2 * BlockedWeightBytes(s) + kThreads * kEdges + GatheredBytes(s);
}

// For the gradient by weights: a partial sum of them per thread. Of the smallest images AVX2 takes
// four, and depthwise convolutions go by blocks of 16 by 16, too.
int64_t DirectSumBytes(const ConvolutionShape& s) {
  constexpr int64_t kEdges = 40 << 10;
  const bool small = s.height < 4 || s.width < 4;
  const int64_t sums = small ? 4 * kThreads : kThreads + 2;
  const int64_t whole = small && IsDepthwise(s) ? 2 * WindowBytes(s) * s.groups * 16 * 16 : 0;
  return InputBytes(s) / s.batch + sums * BlockedWeightBytes(s) + whole + kThreads * kEdges +
         GatheredBytes(s);
}

bool SuitsWinograd(const ConvolutionShape& s) {
  return s.kernel_height == 3 && s.kernel_width == 3 && s.stride == 1 && s.pad == 1 &&
         s.groups == 1 && s.in % 16 == 0 && s.out % 16 == 0 && WinogradTiles(s) >= 64;
}

int64_t WinogradBytes(const ConvolutionShape& s) {
  constexpr int64_t kUnit = int64_t{128} << 10;
  const int64_t each = std::max<int64_t>(32, kUnit / (kPlanes * (s.in + s.out)) / 8 * 8);
  // What kThreads threads have room for; fewer tiles are cut evenly, in eights.
  const int64_t tiles = std::min(kThreads * each, WinogradTiles(s) + 8 * kThreads);
  return kFloat * kPlanes * (s.in * s.out + kGap + tiles * (s.in + s.out) + kThreads * 2 * kGap);
}

int64_t WinogradGradientBytes(const ConvolutionShape& s) {
  constexpr int64_t kPass = int64_t{1} << 20;
  const int64_t most = std::max<int64_t>(64, kPass / (kPlanes * (s.in + s.out)) / 16 * 16);
  const int64_t each = std::min(RoundUp(WinogradTiles(s), 16), most);
  return kFloat * kPlanes * (s.in * s.out + each * (s.in + s.out) + 3 * kGap);
}

// The gradient by weights of other convolutions with enough channels: of each run of pixels a
// gradient, and per thread 120 steps of a tile of 256 by 256.
bool SuitsWeightGradient(const ConvolutionShape& s) {
  return s.groups == 1 && s.in >= 16 && s.out >= 16;
}

int64_t WeightGradientBytes(const ConvolutionShape& s) {
  constexpr int64_t kTile = 256, kPieces = 32, kLeastPixels = 512, kDepth = 120;
  const int64_t places = s.kernel_height * s.kernel_width;
  const int64_t pixels = s.batch * OutHeight(s) * OutWidth(s);
  const int64_t tiles = Ceil(s.out, kTile) * Ceil(s.in, kTile) * places;
  int64_t runs = 1;
  while (tiles * runs < kPieces && pixels / (2 * runs) >= kLeastPixels) runs *= 2;
  const int64_t partials = runs == 1 && places == 1 ? 0 : RoundUp(runs * s.out * places * s.in, 16);
  const int64_t packed = RoundUp(std::min(kTile, s.out), 16) + RoundUp(std::min(kTile, s.in), 16);
  return kFloat * (partials + kThreads * kDepth * packed);
}

}  // namespace trainyard::plan
