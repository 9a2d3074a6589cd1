#include "kernels/cpu/weight_gradient.h"

#include <algorithm>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

using scratch::GradientPieces;

absl::StatusOr<Kernel> WeightGradient(const VectorTable& vectors, int threads,
                                      const ConvolutionBackwardWeights& op) {
  const ConvolutionShape& s = op.shape;
  const GradientPieces pieces(s);
  const int64_t weights = s.out * pieces.places * s.in;
  const bool direct = pieces.direct();
  const int64_t partial_floats = scratch::PartialGradientFloats(s, pieces);
  const int64_t packed_floats = scratch::PackedGradientFloats(s);
  return ForElement(op.x.dtype, [&]<typename T>() {
    Kernel kernel;
    kernel.scratch_bytes = scratch::WeightGradient(s, threads);
    kernel.launch = [=, run = LoopsOf<T>(vectors).weight_gradient,
                     sum = vectors.weight_gradient_sums](Stream& stream) {
      const ConvolutionShape& s = op.shape;
      float* const partials = static_cast<float*>(stream.scratch);
      float* const results = direct ? op.dw.As<float>() : partials;
      ParallelFor(threads, pieces.count(), 1, [&](int64_t i) {
        float* const packed = partials + partial_floats + omp_get_thread_num() * packed_floats;
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
      });
      if (direct) return;
      const int64_t row = pieces.places * s.in;
      ParallelFor(threads, s.out, GrainOf(row), [&](int64_t o) {
        sum({.partials = partials + o * row,
             .count = pieces.runs,
             .each = weights,
             .in = s.in,
             .places = pieces.places,
             .dw = op.dw.As<float>() + o * row,
             .accumulate = op.accumulate});
      });
    };
    return kernel;
  });
}

}  // namespace trainyard::kernels
