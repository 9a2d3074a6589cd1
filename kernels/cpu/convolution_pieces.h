#pragma once

// Pieces of convolutions for oneDNN: images and rows of them, and what oneDNN must know of each.

#include <compare>
#include <vector>

#include "kernels/cpu/pieces.h"
#include "kernels/cpu/staging.h"
#include "kernels/ops/convolution.h"
#include "kernels/scratch/convolution.h"

namespace trainyard::kernels {

// Pieces of the same geometry share a primitive. All of x and y have that of WholeOf.
struct PieceGeometry {
  int64_t images, x_rows, y_rows;
  int64_t pad_top, pad_bottom;  // rows of padding that its first and last windows see

  auto operator<=>(const PieceGeometry&) const = default;
};

PieceGeometry WholeOf(const ConvolutionShape& s);

struct ConvolutionPiece {
  PieceGeometry geometry;
  int64_t image = 0, x_row = 0, y_row = 0;  // the first of each

  // Its first element in x and in y.
  int64_t x_at(const ConvolutionShape& s) const {
    return (image * s.height + x_row) * s.width * s.in;
  }
  int64_t y_at(const ConvolutionShape& s) const {
    return (image * s.out_height() + y_row) * s.out_width() * s.out;
  }
};

// Of a cut of y: the rows of x that its windows see.
std::vector<ConvolutionPiece> ForwardPieces(const ConvolutionShape& s,
                                            const scratch::ConvolutionCut& cut);
// Of a cut of x: the rows of y whose windows see it.
std::vector<ConvolutionPiece> DataPieces(const ConvolutionShape& s,
                                         const scratch::ConvolutionCut& cut);

// Descriptors of a piece's operands as they lie in the arena; w_any lets oneDNN choose the layout
// of the weights.
struct ConvolutionDescs {
  // `type` of x and y, `of_w` of the weights or their gradient; biases are fp32. Of `s` the images
  // and rows do not count.
  ConvolutionDescs(const ConvolutionShape& s, const PieceGeometry& piece,
                   dnnl::memory::data_type type, dnnl::memory::data_type of_w);

  dnnl::memory::desc x, y, w, bias, w_any;
  dnnl::memory::dims stride, pad_before, pad_after;
};

inline constexpr dnnl::algorithm kDirectConvolution = dnnl::algorithm::convolution_direct;

// The forward primitive; the gradients need it as a hint, too.
dnnl::convolution_forward::primitive_desc ForwardOf(const Dnnl& dnnl, const ConvolutionDescs& d,
                                                    bool bias);

// Whether products of `type` are made in fp32 here: those of f32, and of types that the CPU has no
// instructions for.
inline bool ProductsInF32(const Dnnl& dnnl, DType type) {
  return type == DType::kF32 || !dnnl.Computes(type);
}

}  // namespace trainyard::kernels
