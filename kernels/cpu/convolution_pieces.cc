#include "kernels/cpu/convolution_pieces.h"

#include <algorithm>

namespace trainyard::kernels {

using dnnl::memory;
using scratch::ConvolutionCut;

PieceGeometry WholeOf(const ConvolutionShape& s) {
  return {s.batch, s.height, s.out_height(), s.pad, s.pad};
}

namespace {

// `rows` makes the piece of the rows [begin, end). Without bands a piece has whole images, with
// rows that no window sees, too: images of one piece lie densely.
template <typename F>
std::vector<ConvolutionPiece> PiecesOf(const ConvolutionShape& s, const ConvolutionCut& cut,
                                       const F& rows) {
  std::vector<ConvolutionPiece> pieces;
  for (int64_t run = 0; run < cut.runs; ++run) {
    for (int64_t band = 0; band < cut.bands; ++band) {
      ConvolutionPiece& piece =
          pieces.emplace_back(cut.bands == 1 ? ConvolutionPiece{.geometry = WholeOf(s)}
                                             : rows(cut.row(band), cut.row(band + 1)));
      piece.image = cut.image(run);
      piece.geometry.images = cut.image(run + 1) - piece.image;
    }
  }
  return pieces;
}

}  // namespace

std::vector<ConvolutionPiece> ForwardPieces(const ConvolutionShape& s, const ConvolutionCut& cut) {
  return PiecesOf(s, cut, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * s.stride - s.pad;
    const int64_t to = (end - 1) * s.stride - s.pad + s.kernel_height;
    ConvolutionPiece piece{.x_row = std::max<int64_t>(0, from), .y_row = begin};
    piece.geometry = {.x_rows = std::min(s.height, to) - piece.x_row,
                      .y_rows = end - begin,
                      .pad_top = piece.x_row - from,
                      .pad_bottom = std::max<int64_t>(0, to - s.height)};
    return piece;
  });
}

std::vector<ConvolutionPiece> DataPieces(const ConvolutionShape& s, const ConvolutionCut& cut) {
  return PiecesOf(s, cut, [&](int64_t begin, int64_t end) {
    // Window r sees the rows from r * stride - pad on.
    const int64_t first = begin + s.pad - s.kernel_height + 1;
    const int64_t from = first <= 0 ? 0 : scratch::Ceil(first, s.stride);
    const int64_t to = std::min(s.out_height(), (end - 1 + s.pad) / s.stride + 1);
    ConvolutionPiece piece{.x_row = begin, .y_row = from};
    const int64_t top = s.pad + begin - from * s.stride;
    const int64_t seen = (to - from - 1) * s.stride + s.kernel_height - top;  // from `begin` on
    piece.geometry = {.x_rows = end - begin,
                      .y_rows = to - from,
                      .pad_top = top,
                      .pad_bottom = std::max<int64_t>(0, seen - (end - begin))};
    return piece;
  });
}

ConvolutionDescs::ConvolutionDescs(const ConvolutionShape& s, const PieceGeometry& piece,
                                   memory::data_type type, memory::data_type of_w)
    : x({piece.images, s.in, piece.x_rows, s.width}, type, memory::format_tag::nhwc),
      y({piece.images, s.out, piece.y_rows, s.out_width()}, type, memory::format_tag::nhwc),
      bias({s.out}, memory::data_type::f32, memory::format_tag::x),
      stride{s.stride, s.stride},
      pad_before{piece.pad_top, s.pad},
      pad_after{piece.pad_bottom, s.pad} {
  // Weights as [groups, out / groups, in / groups, …] lie in memory as [out, in / groups, …] do.
  const bool grouped = s.groups > 1;
  memory::dims dims = {s.out / s.groups, s.in / s.groups, s.kernel_height, s.kernel_width};
  if (grouped) dims.insert(dims.begin(), s.groups);
  w = memory::desc(dims, of_w, grouped ? memory::format_tag::goihw : memory::format_tag::oihw);
  w_any = memory::desc(dims, of_w, memory::format_tag::any);
}

dnnl::convolution_forward::primitive_desc ForwardOf(const Dnnl& dnnl, const ConvolutionDescs& d,
                                                    bool bias) {
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  using Forward = dnnl::convolution_forward::desc;
  const Forward desc = bias ? Forward(kKind, kDirectConvolution, d.x, d.w_any, d.bias, d.y,
                                      d.stride, d.pad_before, d.pad_after)
                            : Forward(kKind, kDirectConvolution, d.x, d.w_any, d.y, d.stride,
                                      d.pad_before, d.pad_after);
  return {desc, UserScratch(), dnnl.engine()};
}

}  // namespace trainyard::kernels
