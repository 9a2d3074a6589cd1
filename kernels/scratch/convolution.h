#pragma once

// How convolutions that oneDNN computes are cut on the CPU (cpu/convolution.cc). oneDNN would cut
// them by the number of threads, and add up by it; a piece is the work of one thread, and what the
// pieces are follows from the shape alone.

#include <algorithm>

#include "kernels/ops/convolution.h"
#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::scratch {

// Runs of images and, where there are few images, bands of rows of each.
struct ConvolutionCut {
  static constexpr int64_t kPieces = 16;        // that keep as many threads busy
  static constexpr int64_t kLeastPixels = 196;  // of a band

  int64_t batch, height, grain, runs, bands = 1;

  // For `pieces` pieces of a tensor [batch, height, width, …] of a convolution, or fewer. Bands
  // begin at multiples of `grain` rows, and each sees a window that is not padding alone.
  constexpr ConvolutionCut(int64_t pieces, const ConvolutionShape& s, int64_t height, int64_t width,
                           int64_t grain = 1)
      : batch(s.batch), height(height), grain(grain), runs(std::min(s.batch, pieces)) {
    if (s.batch >= pieces || s.pad >= s.kernel_height || s.stride > s.kernel_height) return;
    const int64_t least_rows = std::max(s.kernel_height + s.stride, Ceil(kLeastPixels, width));
    bands = std::max<int64_t>(1, std::min(Ceil(pieces, s.batch), height / least_rows));
  }

  constexpr int64_t count() const { return runs * bands; }
  // The first image of run r, and the first row of band b.
  constexpr int64_t image(int64_t r) const { return batch * r / runs; }
  constexpr int64_t row(int64_t b) const {
    return b == bands ? height : height * b / bands / grain * grain;
  }
};

// Forward, pieces of the output.
constexpr ConvolutionCut ForwardCut(const ConvolutionShape& s) {
  return {ConvolutionCut::kPieces, s, s.out_height(), s.out_width()};
}

// By data, pieces of the input's gradient.
constexpr ConvolutionCut DataCut(const ConvolutionShape& s) {
  return {ConvolutionCut::kPieces, s, s.height, s.width, s.stride};
}

constexpr int64_t WeightsOf(const ConvolutionShape& s) {
  return s.out * (s.in / s.groups) * s.kernel_height * s.kernel_width;
}

// By weights, pieces of the output's gradient. Each leaves a partial gradient, which costs as much
// as a hundred pixels or so of a large one that no cache holds; so they are few where pixels are.
constexpr ConvolutionCut WeightsCut(const ConvolutionShape& s) {
  const int64_t weights = WeightsOf(s), pixels = s.batch * s.out_height() * s.out_width();
  const int64_t least = weights <= 64 << 10 ? 256 : weights <= 1 << 20 ? 1024 : 2048;
  const int64_t pieces = std::clamp<int64_t>(pixels / least, 1, ConvolutionCut::kPieces);
  return {pieces, s, s.out_height(), s.out_width()};
}

// Where these leave most threads without any, the outputs are cut, too, in slices that oneDNN's
// kernels compute at nearly full speed: each slice rearranges the input again, and with steps
// between windows there is more of it.
constexpr int64_t WeightsSlices(const ConvolutionShape& s) {
  constexpr int64_t kEnough = 8, kGrain = 64;
  if (s.groups > 1 || s.out % kGrain != 0 || WeightsCut(s).count() >= kEnough) return 1;
  return std::max<int64_t>(1, s.out / (s.stride > 1 ? 256 : 128));
}

}  // namespace trainyard::kernels::scratch
