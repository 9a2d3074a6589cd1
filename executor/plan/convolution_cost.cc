#include "executor/plan/convolution_cost.h"

#include <algorithm>

#include "executor/plan/scratch.h"

namespace trainyard::plan {
namespace {

bool IsDepthwise(const ConvolutionShape& s) {
  return s.groups > 1 && s.groups == s.in && s.groups == s.out;
}

int64_t WindowBytes(const ConvolutionShape& s) { return kFloat * s.kernel_height * s.kernel_width; }

// Weights in blocks of 16 channels by 16, or by one.
int64_t BlockedWeightBytes(const ConvolutionShape& s) {
  if (IsDepthwise(s)) return WindowBytes(s) * RoundUp(s.groups, 16);
  return WindowBytes(s) * s.groups * RoundUp(s.in / s.groups, 16) * RoundUp(s.out / s.groups, 16);
}

bool IsOnePixel(const ConvolutionShape& s) { return s.kernel_height == 1 && s.kernel_width == 1; }

// Channels that do not fill blocks of 16, other than the few of a picture.
bool HasOddChannels(const ConvolutionShape& s) {
  if (s.groups > 1) return !IsDepthwise(s) || s.groups % 16 != 0;
  return (s.in % 16 != 0 && s.in > 4) || s.out % 16 != 0;
}

bool HasLargeWindow(const ConvolutionShape& s) { return s.kernel_height > 8 || s.kernel_width > 8; }

// What all windows of an image read, put side by side, per thread: of windows of one pixel in
// steps, and where oneDNN has no direct kernel. `pictures`: the few channels of a picture have one.
int64_t GatheredBytes(const ConvolutionShape& s, bool pictures) {
  const bool odd = HasOddChannels(s) || (!pictures && s.groups == 1 && s.in <= 4);
  const bool small = s.height < s.kernel_height || s.width < s.kernel_width;
  const bool gathers = IsOnePixel(s) ? s.stride > 1 || odd : odd || small || HasLargeWindow(s);
  return gathers ? kThreads * WindowBytes(s) * (s.in / s.groups) * s.out_height() * s.out_width()
                 : 0;
}

int64_t WinogradTiles(const ConvolutionShape& s) {
  return s.batch * Ceil(s.height, 4) * Ceil(s.width, 4);
}

// Winograd's F(4x4, 3x3): 36 planes of the weights or their gradient, and of some tiles with all
// their channels: per thread, or for the gradient by weights of a pass; a gap of 16 between planes.
constexpr int64_t kPlanes = 36, kGap = 16;

// oneDNN's kernels for AMX tiles, of which Tile...Bytes below were read off its primitives on such
// a CPU, with an eighth more: elements are bf16, channels come in blocks of 16 or 32.
constexpr int64_t kNarrow = 2;
constexpr int64_t kTiles = 40 << 10;  // tiles on their way, and sums of them in fp32

int64_t ForAllThreads(int64_t bytes) { return kThreads * (bytes + bytes / 8); }

}  // namespace

double ConvolutionFlops(const ConvolutionShape& s) {
  return 2.0 * static_cast<double>(s.batch * s.out_height() * s.out_width()) *
         static_cast<double>(s.out * (s.in / s.groups)) *
         static_cast<double>(s.kernel_height * s.kernel_width);
}

int64_t InputBytes(const ConvolutionShape& s) {
  return kFloat * s.batch * s.height * s.width * s.in;
}

int64_t DirectBytes(const ConvolutionShape& s, bool pictures) {
  constexpr int64_t kEdges = 8 << 10;  // what is padded to whole blocks, per thread
  return 2 * BlockedWeightBytes(s) + kThreads * kEdges + GatheredBytes(s, pictures);
}

// For the gradient by weights: partial sums of them per thread. Depthwise convolutions of small
// images, or of windows other than 3 by 3, go by blocks of 16 by 16, too.
int64_t DirectSumBytes(const ConvolutionShape& s) {
  constexpr int64_t kEdges = 40 << 10;
  const bool small = std::min({s.height, s.width, s.out_height(), s.out_width()}) < 4;
  const int64_t sums = small || HasLargeWindow(s) ? 5 * kThreads
                       : HasOddChannels(s)        ? 2 * kThreads + 2
                                                  : kThreads + 2;
  const bool whole_blocks =
      IsDepthwise(s) && (small || s.kernel_height != 3 || s.kernel_width != 3);
  const int64_t whole = whole_blocks ? 2 * WindowBytes(s) * RoundUp(s.groups, 16) * 16 * 16 : 0;
  return InputBytes(s) / s.batch + sums * BlockedWeightBytes(s) + whole + kThreads * kEdges +
         (HasLargeWindow(s) ? 2 : 1) * GatheredBytes(s, true);
}

// The part of a padded image that a thread keeps at hand: as much as suits its cache, or all of it,
// in blocks of 16 pixels, their steps between. Of windows of one pixel what they read, unless it
// can be read in place.
int64_t TileForwardBytes(const ConvolutionShape& s) {
  constexpr int64_t kMostImage = 4 * kMiB;
  const int64_t channels = RoundUp(s.in / s.groups, 32);
  int64_t pixels = 0;
  if (!IsOnePixel(s)) {
    const int64_t columns = (RoundUp(s.out_width(), 16) + 16) * s.stride + s.kernel_width;
    pixels = (s.height + 2 * s.pad) * (s.stride > 1 ? columns + columns / 2 : columns);
  } else if (s.stride > 1 || s.in % 32 != 0) {
    pixels = s.out_height() * s.out_width();
  }
  return DirectBytes(s, true) +
         ForAllThreads(kTiles + std::min(kMostImage, kNarrow * pixels * channels));
}

// Without tiles, of windows of one pixel, the sums of an image in fp32 per thread.
int64_t NarrowDataBytes(const ConvolutionShape& s) {
  const int64_t image = kFloat * s.height * s.width * RoundUp(s.in, 16);
  return DirectBytes(s, false) + (IsOnePixel(s) ? kThreads * image : 0);
}

// The gradients that a block of ten rows of 32 pixels needs.
int64_t TileDataBytes(const ConvolutionShape& s) {
  const int64_t pixels = (s.kernel_height + 9) * (s.kernel_width + 31);
  return DirectBytes(s, false) +
         ForAllThreads(kTiles + kNarrow * pixels * RoundUp(s.out / s.groups, 32));
}

// An image and its gradient, transposed, twice each where they have more than one block of
// channels; rows of the image begin and end with blocks of pixels that are filled up.
int64_t TileSumBytes(const ConvolutionShape& s) {
  const int64_t columns = s.stride * (RoundUp(s.out_width(), 32) + 32);
  const int64_t image = (s.height + 2 * s.pad) * columns * RoundUp(s.in, 16);
  const int64_t gradient = s.out_height() * RoundUp(s.out_width(), 2) * RoundUp(s.out, 16);
  const auto blocks = [](int64_t channels) { return channels > 16 ? 2 : 1; };
  if (IsDepthwise(s)) {
    constexpr int64_t kCopies = 8, kBlown = 112;  // bytes an element: of all images, of one
    const int64_t elements = s.height * s.width * s.in + s.out_height() * s.out_width() * s.out;
    return DirectSumBytes(s) + (kCopies * s.batch + kBlown) * elements;
  }
  return DirectSumBytes(s) +
         ForAllThreads(kNarrow * (blocks(s.in) * image + blocks(s.out) * gradient));
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
  const int64_t pixels = s.batch * s.out_height() * s.out_width();
  const int64_t tiles = Ceil(s.out, kTile) * Ceil(s.in, kTile) * places;
  int64_t runs = 1;
  while (tiles * runs < kPieces && pixels / (2 * runs) >= kLeastPixels) runs *= 2;
  const int64_t partials = runs == 1 && places == 1 ? 0 : RoundUp(runs * s.out * places * s.in, 16);
  const int64_t packed = RoundUp(std::min(kTile, s.out), 16) + RoundUp(std::min(kTile, s.in), 16);
  return kFloat * (partials + kThreads * kDepth * packed);
}

}  // namespace trainyard::plan
