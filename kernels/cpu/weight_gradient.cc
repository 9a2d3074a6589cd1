#include "kernels/cpu/weight_gradient.h"

#include <algorithm>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

// The gradient in tiles of a size that two caches hold, and the pixels in runs, so that there are
// enough pieces of work for many threads; runs are short for no reason else, each adds a partial
// gradient.
struct GradientPieces {
  static constexpr int64_t kTile = 256, kPieces = 32, kLeastPixels = 512;

  int64_t tiles_out, tiles_in, places, runs = 1, pixels;

  explicit GradientPieces(const ConvolutionShape& s)
      : tiles_out((s.out + kTile - 1) / kTile),
        tiles_in((s.in + kTile - 1) / kTile),
        places(s.kernel_height * s.kernel_width),
        pixels(s.batch * s.out_height() * s.out_width()) {
    while (tiles() * runs < kPieces && pixels / (2 * runs) >= kLeastPixels) runs *= 2;
  }

  int64_t tiles() const { return tiles_out * tiles_in * places; }
  int64_t count() const { return runs * tiles(); }
  // Where run r begins.
  int64_t begin(int64_t r) const { return pixels * r / runs; }
};

int64_t RoundedToPanels(int64_t n) { return (n + 15) / 16 * 16; }

}  // namespace

bool SuitsWeightGradient(const ConvolutionShape& s) {
  return s.groups == 1 && s.in >= 16 && s.out >= 16;
}

absl::StatusOr<Kernel> WeightGradient(const VectorTable& vectors, int threads,
                                      const ConvolutionBackwardWeights& op) {
  const ConvolutionShape& s = op.shape;
  const GradientPieces pieces(s);
  const int64_t weights = s.out * pieces.places * s.in;
  const bool direct = pieces.runs == 1 && pieces.places == 1;
  const int64_t partial_floats = direct ? 0 : RoundedToPanels(pieces.runs * weights);
  const int64_t packed_floats =
      kWeightGradientDepth * (RoundedToPanels(std::min(GradientPieces::kTile, s.out)) +
                              RoundedToPanels(std::min(GradientPieces::kTile, s.in)));
  return ForElement("convolution backward weights", op.x.dtype, [&]<typename T>() {
    Kernel kernel;
    kernel.scratch_bytes = (partial_floats + threads * packed_floats) * sizeof(float);
    kernel.launch = [=, run = LoopsOf<T>(vectors).weight_gradient,
                     sum = vectors.weight_gradient_sums](Stream& stream) {
      const ConvolutionShape& s = op.shape;
      float* const partials = static_cast<float*>(stream.scratch);
      float* const results = direct ? op.dw.As<float>() : partials;
      ParallelRuns(threads, pieces.count(), 1, [&](int64_t begin, int64_t end) {
        float* const packed = partials + partial_floats + omp_get_thread_num() * packed_floats;
        for (int64_t i = begin; i < end; ++i) {
          const int64_t r = i / pieces.tiles();
          const int64_t first_out =
              i / (pieces.places * pieces.tiles_in) % pieces.tiles_out * GradientPieces::kTile;
          const int64_t place = i / pieces.tiles_in % pieces.places;
          const int64_t first_in = i % pieces.tiles_in * GradientPieces::kTile;
          run({.x = op.x.As<T>() + first_in,
               .dy = op.dy.As<T>() + first_out,
               .height = s.height,
               .width = s.width,
               .in = s.in,
               .out_height = s.out_height(),
               .out_width = s.out_width(),
               .out = s.out,
               .stride = s.stride,
               .shift_y = place / s.kernel_width - s.pad,
               .shift_x = place % s.kernel_width - s.pad,
               .first_pixel = pieces.begin(r),
               .pixels = pieces.begin(r + 1) - pieces.begin(r),
               .outs = std::min(GradientPieces::kTile, s.out - first_out),
               .ins = std::min(GradientPieces::kTile, s.in - first_in),
               .dw = results + r * weights + (first_out * pieces.places + place) * s.in + first_in,
               .dw_row = pieces.places * s.in,
               .accumulate = direct && op.accumulate,
               .scratch = packed});
        }
      });
      if (direct) return;
      const int64_t row = pieces.places * s.in;
      ParallelRuns(threads, s.out, std::max<int64_t>(1, kSerialElements / row),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t o = begin; o < end; ++o) {
                       sum({.partials = partials + o * row,
                            .count = pieces.runs,
                            .each = weights,
                            .in = s.in,
                            .places = pieces.places,
                            .dw = op.dw.As<float>() + o * row,
                            .accumulate = op.accumulate});
                     }
                   });
    };
    return kernel;
  });
}

}  // namespace trainyard::kernels
