#pragma once

// The gradient by weights of a convolution by our own kernel on the CPU (cpu/weight_gradient.h).

#include <algorithm>

#include "kernels/ops/convolution.h"
#include "kernels/scratch/sizes.h"
#include "kernels/scratch/weight_gradient_depth.h"

namespace trainyard::kernels::scratch {

// Whether it takes a convolution: one group, and enough channels to fill its tiles.
constexpr bool SuitsWeightGradient(const ConvolutionShape& s) {
  return s.groups == 1 && s.in >= 16 && s.out >= 16;
}

// The gradient in tiles of a size that two caches hold, and the pixels in runs, so that there are
// enough pieces of work for many threads. A run ends early for no other reason, since each adds a
// partial gradient.
struct GradientPieces {
  static constexpr int64_t kTile = 256, kPieces = 32, kLeastPixels = 512;

  int64_t tiles_out, tiles_in, places, runs = 1, pixels;

  constexpr explicit GradientPieces(const ConvolutionShape& s)
      : tiles_out(Ceil(s.out, kTile)),
        tiles_in(Ceil(s.in, kTile)),
        places(s.kernel_height * s.kernel_width),
        pixels(s.batch * s.out_height() * s.out_width()) {
    while (tiles() * runs < kPieces && pixels / (2 * runs) >= kLeastPixels) runs *= 2;
  }

  constexpr int64_t tiles() const { return tiles_out * tiles_in * places; }
  constexpr int64_t count() const { return runs * tiles(); }
  // The first pixel of run r.
  constexpr int64_t begin(int64_t r) const { return pixels * r / runs; }
  // Whether the only run writes the gradient itself.
  constexpr bool direct() const { return runs == 1 && places == 1; }
};

// In floats: the partial gradients of all runs, and the operands that a thread has packed.
constexpr int64_t PartialGradientFloats(const ConvolutionShape& s, const GradientPieces& pieces) {
  return pieces.direct() ? 0 : RoundUp(pieces.runs * s.out * pieces.places * s.in, 16);
}
constexpr int64_t PackedGradientFloats(const ConvolutionShape& s) {
  return kWeightGradientDepth * (RoundUp(std::min(GradientPieces::kTile, s.out), 16) +
                                 RoundUp(std::min(GradientPieces::kTile, s.in), 16));
}
constexpr int64_t WeightGradient(const ConvolutionShape& s, int64_t threads) {
  return kFloat * (PartialGradientFloats(s, GradientPieces(s)) + threads * PackedGradientFloats(s));
}

}  // namespace trainyard::kernels::scratch
