#include "executor/plan/ops/convolution_scratch.h"

#include <algorithm>
#include <initializer_list>

#include "executor/plan/ops/product_scratch.h"
#include "kernels/scratch/convolution.h"
#include "kernels/scratch/cuda.h"
#include "kernels/scratch/sums.h"
#include "kernels/scratch/weight_gradient.h"
#include "kernels/scratch/winograd.h"

namespace trainyard::plan {
namespace {

using kernels::scratch::Ceil;
using kernels::scratch::RoundUp;
using kernels::scratch::SuitsWeightGradient;
using kernels::scratch::SuitsWinograd;

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

// oneDNN's kernels for AMX tiles, of which Tile...Bytes below were read off its primitives on such
// a CPU, with an eighth more: elements are bf16, channels come in blocks of 16 or 32.
constexpr int64_t kNarrow = 2;
constexpr int64_t kTiles = 40 << 10;  // tiles on their way, and sums of them in fp32

int64_t ForAllThreads(int64_t bytes) { return kThreads * (bytes + bytes / 8); }

// x in fp32.
int64_t InputBytes(const ConvolutionShape& s) {
  return kFloat * s.batch * s.height * s.width * s.in;
}

// oneDNN's direct kernels, forward (`pictures`: with kernels of their own for images of few
// channels) and by data.
int64_t DirectBytes(const ConvolutionShape& s, bool pictures) {
  constexpr int64_t kEdges = 8 << 10;  // what is padded to whole blocks, per thread
  return 2 * BlockedWeightBytes(s) + kThreads * kEdges + GatheredBytes(s, pictures);
}

// For the gradient by weights: partial sums of them, one for each part of the images, and what a
// thread keeps. Depthwise convolutions of small images, or of windows other than 3 by 3, go by
// blocks of 16 by 16, which a thread keeps, too. Slices of the outputs have copies of dy.
int64_t DirectSumBytes(const ConvolutionShape& s, int64_t element = kFloat) {
  constexpr int64_t kEdges = 40 << 10;
  const bool small = std::min({s.height, s.width, s.out_height(), s.out_width()}) < 4;
  const bool whole_blocks =
      IsDepthwise(s) && (small || s.kernel_height != 3 || s.kernel_width != 3);
  const int64_t whole = whole_blocks ? 2 * WindowBytes(s) * RoundUp(s.groups, 16) * 16 * 16 : 0;
  const int64_t parts = kernels::scratch::WeightsCut(s).count();
  const int64_t dy = element * s.batch * s.out_height() * s.out_width() * s.out;
  const int64_t copies = kernels::scratch::WeightsSlices(s) > 1 ? dy : 0;
  const int64_t kept =
      (HasLargeWindow(s) || small || HasOddChannels(s) ? 1 : 0) * BlockedWeightBytes(s);
  return copies + (parts + 2) * BlockedWeightBytes(s) +
         kThreads * (kept + whole + kEdges + InputBytes(s) / s.batch) +
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
  const int64_t sums = std::min<int64_t>(256 << 10, 3 * kFloat * 64 * RoundUp(s.out, 16));
  return DirectBytes(s, true) +
         ForAllThreads(kTiles + sums + std::min(kMostImage, kNarrow * pixels * channels));
}

// By data, where the CPU has instructions for bf16 but no tiles: of windows of one pixel, the sums
// of an image in fp32 per thread.
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
    constexpr int64_t kCopies = 8, kBlown = 25;  // bytes an element: of a piece, of one image
    const int64_t elements = s.height * s.width * s.in + s.out_height() * s.out_width() * s.out;
    const int64_t images = Ceil(s.batch, kernels::scratch::WeightsCut(s).runs);
    return DirectSumBytes(s, kNarrow) + ForAllThreads((kCopies * images + kBlown) * elements);
  }
  return DirectSumBytes(s, kNarrow) +
         ForAllThreads(kNarrow * (blocks(s.in) * image + blocks(s.out) * gradient));
}

// oneDNN's, of operands of which the first says the type: `wide` bytes and fp32 copies of what is
// not fp32, or `narrow` where the CPU has bf16.
int64_t ByOneDnn(const Tensors& tensors, std::initializer_list<TensorId> operands, int64_t wide,
                 int64_t narrow) {
  for (const TensorId id : operands) {
    if (tensors[id].type != ElementType::kF32) wide += kFloat * tensors[id].elements();
  }
  return OnAnyCpu(tensors[*operands.begin()].type, wide, narrow);
}

}  // namespace

// Our own convolutions read any type in place; where the CPU has bf16, oneDNN's take their place.

int64_t CpuConvolutionScratch(const ConvolutionForward& o, const Tensors& tensors) {
  const int64_t narrow = TileForwardBytes(o.shape);
  if (SuitsWinograd(o.shape)) {
    const int64_t own = kernels::scratch::MostWinogradProduct(o.shape, kThreads);
    return OnAnyCpu(tensors[o.x].type, own, narrow);
  }
  return ByOneDnn(tensors, {o.x, o.w, o.y}, DirectBytes(o.shape, true), narrow);
}

int64_t CpuConvolutionScratch(const ConvolutionBackwardData& o, const Tensors& tensors) {
  const int64_t narrow = std::max(NarrowDataBytes(o.shape), TileDataBytes(o.shape));
  if (SuitsWinograd(o.shape)) {
    const int64_t own = kernels::scratch::MostWinogradProduct(o.shape, kThreads);
    return OnAnyCpu(tensors[o.dy].type, own, narrow);
  }
  return ByOneDnn(tensors, {o.dy, o.w, o.dx}, DirectBytes(o.shape, false), narrow);
}

int64_t CpuConvolutionScratch(const ConvolutionBackwardWeights& o, const Tensors& tensors) {
  const ConvolutionShape& s = o.shape;
  const int64_t rows = s.batch * s.out_height() * s.out_width();
  const int64_t bias = o.dbias == kNone ? 0 : kernels::scratch::RowSums(rows, s.out);
  // oneDNN's bf16 copies both operands, transposed; with tiles an image of them at a time. Windows
  // of one pixel are a product.
  const bool product = IsOnePixel(s) && s.stride == 1 && s.pad == 0 && s.groups == 1;
  const int64_t as_product =
      NarrowProductScratch({.m = s.out, .n = s.in, .k = rows, .transpose_a = true});
  const int64_t by_bf16 = product ? std::max(bias, as_product + as_product / 4) : TileSumBytes(s);
  const int64_t narrow = ByOneDnn(tensors, {o.x, o.dy}, DirectSumBytes(s), by_bf16);
  if (!SuitsWinograd(s) && !SuitsWeightGradient(s)) return narrow;
  const int64_t own = SuitsWinograd(s) ? kernels::scratch::WinogradGradient(s)
                                       : kernels::scratch::WeightGradient(s, kThreads);
  return OnAnyCpu(tensors[o.x].type, std::max(own, bias), by_bf16);
}

// The weights, in cuDNN's order, lie beside its workspace, and the sums of a bias.
int64_t GpuConvolutionScratch(const ConvolutionShape& s, bool bias) {
  constexpr auto kAlign = static_cast<int64_t>(kernels::cuda::kWorkspaceAlign);
  constexpr auto kMost = static_cast<int64_t>(kernels::cuda::kMostConvolutionWorkspace);
  const int64_t weights = kFloat * s.out * (s.in / s.groups) * s.kernel_height * s.kernel_width;
  const size_t sums = bias ? kernels::cuda::RowSumBytes(kernels::cuda::kMostRowChunks, s.out) : 0;
  return kAlign + RoundUp(weights, kAlign) + kMost + static_cast<int64_t>(sums);
}

}  // namespace trainyard::plan
