#include "kernels/cpu/winograd.h"

#include <algorithm>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

using scratch::Ceil;

constexpr int64_t kPlanes = scratch::kWinogradPlanes, kGap = scratch::kWinogradGap;
constexpr int64_t kCols = 192;  // of a product that one thread takes at a time, a multiple of 48

template <typename T>
WinogradImage<T> ImageOf(T* data, const ConvolutionShape& s, int64_t channels, int64_t first,
                         int64_t tiles) {
  return {.data = data,
          .height = s.height,
          .width = s.width,
          .channels = channels,
          .first = first,
          .tiles = tiles};
}

// y = x * w (+ bias), or dx = dy * w with the window turned. A thread takes a few tiles through all
// three steps, while the second cache holds them.
template <typename T>
Kernel Product(const VectorTable& vectors, int threads, const ConvolutionShape& s, bool backward,
               const T* x, const T* w, const float* bias, T* y) {
  const int64_t tiles = scratch::WinogradTiles(s);
  const int64_t each = scratch::TilesOfUnit(s, threads);
  const int64_t ins = backward ? s.out : s.in, outs = backward ? s.in : s.out;
  const int64_t lanes = vectors.lanes;
  const int64_t weights_plane = ins * outs + kGap;
  const WinogradPlanes in_planes{nullptr, each * ins + kGap, ins, lanes};
  const WinogradPlanes out_planes{nullptr, each * outs + kGap, outs, lanes};
  const int64_t unit_floats = kPlanes * (in_planes.plane + out_planes.plane);
  const auto launch = [=, loops = LoopsOf<T>(vectors),
                       product = vectors.panel_product](Stream& stream) {
    float* const weights = static_cast<float*>(stream.scratch);
    ParallelRuns(threads, outs, lanes, [&](int64_t begin, int64_t end) {
      loops.winograd_weights({.w = w,
                              .outs = s.out,
                              .ins = s.in,
                              .backward = backward,
                              .first = begin,
                              .cols = end - begin,
                              .to = weights,
                              .plane = weights_plane,
                              .panel = ins * lanes});
    });
    const int64_t units = Ceil(tiles, each);
    ParallelRuns(threads, units, 1, [&](int64_t begin, int64_t end) {
      WinogradPlanes in = in_planes, out = out_planes;
      // With fewer units than threads, the threads that get one need not be the first.
      const int64_t place = units < threads ? begin : omp_get_thread_num();
      in.data = weights + kPlanes * weights_plane + place * unit_floats;
      out.data = in.data + kPlanes * in.plane;
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t first = unit * each, count = std::min(each, tiles - first);
        loops.winograd_input(ImageOf(x, s, ins, first, count), in);
        for (int64_t k = 0; k < kPlanes; ++k) {
          product({.a = in.data + k * in.plane,
                   .a_row = ins,
                   .a_step = 1,
                   .a_panel = lanes * ins,
                   .b = weights + k * weights_plane,
                   .b_panel = ins * lanes,
                   .depth = ins,
                   .c = out.data + k * out.plane,
                   .c_row = outs,
                   .rows = count,
                   .cols = outs,
                   .accumulate = false});
        }
        loops.winograd_output(out, bias, ImageOf(y, s, outs, first, count));
      }
    });
  };
  return {.launch = launch,
          .scratch_bytes = static_cast<size_t>(scratch::WinogradProduct(s, threads))};
}

// dw: the products are sums over tiles, so tiles are the steps of both operands' panels.
template <typename T>
Kernel WeightGradientOf(const VectorTable& vectors, int threads,
                        const ConvolutionBackwardWeights& op) {
  const ConvolutionShape& s = op.shape;
  const int64_t all = scratch::WinogradTiles(s), each = scratch::TilesOfPass(s);
  const int64_t lanes = vectors.lanes;
  const int64_t sums_plane = s.out * s.in + kGap;
  const WinogradPlanes x_planes{nullptr, each * s.in + kGap, lanes, each * lanes};
  const WinogradPlanes dy_planes{nullptr, each * s.out + kGap, lanes, each * lanes};
  const auto launch = [=, loops = LoopsOf<T>(vectors), product = vectors.panel_product,
                       transform = vectors.winograd_weight_gradient](Stream& stream) {
    const ConvolutionShape& s = op.shape;
    float* const sums = static_cast<float*>(stream.scratch);
    WinogradPlanes x = x_planes, dy = dy_planes;
    x.data = sums + kPlanes * sums_plane;
    dy.data = x.data + kPlanes * x.plane;
    for (int64_t first = 0; first < all; first += each) {
      const int64_t tiles = std::min(each, all - first);
      ParallelRuns(threads, tiles, 1, [&](int64_t begin, int64_t end) {
        WinogradPlanes to_x = x, to_dy = dy;
        to_x.data += begin * to_x.tile;
        to_dy.data += begin * to_dy.tile;
        loops.winograd_input(ImageOf<const T>(op.x.As<T>(), s, s.in, first + begin, end - begin),
                             to_x);
        loops.winograd_gradient(
            ImageOf<const T>(op.dy.As<T>(), s, s.out, first + begin, end - begin), to_dy);
      });
      const int64_t slabs = Ceil(s.in, kCols);
      ParallelFor(threads, kPlanes * slabs, 1, [&](int64_t i) {
        const int64_t k = i / slabs, col = i % slabs * kCols;
        product({.a = dy.data + k * dy.plane,
                 .a_row = 1,
                 .a_step = lanes,
                 .a_panel = dy.chunk,
                 .b = x.data + k * x.plane + col * each,
                 .b_panel = x.chunk,
                 .depth = tiles,
                 .c = sums + k * sums_plane + col,
                 .c_row = s.in,
                 .rows = s.out,
                 .cols = std::min(kCols, s.in - col),
                 .accumulate = first > 0});
      });
    }
    ParallelFor(threads, s.out, 1, [&](int64_t o) {
      transform({.from = sums + o * s.in,
                 .plane = sums_plane,
                 .ins = s.in,
                 .dw = op.dw.As<float>() + o * s.in * 9,
                 .accumulate = op.accumulate});
    });
  };
  return {.launch = launch, .scratch_bytes = static_cast<size_t>(scratch::WinogradGradient(s))};
}

}  // namespace

absl::StatusOr<Kernel> WinogradForward(const VectorTable& vectors, int threads,
                                       const ConvolutionForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Product<T>(vectors, threads, op.shape, false, op.x.As<T>(), op.w.As<T>(),
                      OptionalAs<float>(op.bias), op.y.As<T>());
  });
}

absl::StatusOr<Kernel> WinogradBackwardData(const VectorTable& vectors, int threads,
                                            const ConvolutionBackwardData& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Product<T>(vectors, threads, op.shape, true, op.dy.As<T>(), op.w.As<T>(), nullptr,
                      op.dx.As<T>());
  });
}

absl::StatusOr<Kernel> WinogradBackwardWeights(const VectorTable& vectors, int threads,
                                               const ConvolutionBackwardWeights& op) {
  return ForElement(op.x.dtype,
                    [&]<typename T>() { return WeightGradientOf<T>(vectors, threads, op); });
}

}  // namespace trainyard::kernels
