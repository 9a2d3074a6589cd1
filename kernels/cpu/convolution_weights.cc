#include <algorithm>
#include <map>
#include <utility>

#include "kernels/cpu/convolution_pieces.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/weight_gradient.h"
#include "kernels/cpu/winograd.h"
#include "kernels/ops/column_sum.h"
#include "kernels/ops/matmul.h"

// Gradients of convolutions by their weights. Those that oneDNN computes are cut in pieces of one
// thread each: parts of the images, each of which leaves a partial gradient, and slices of the
// outputs (kernels/scratch/convolution.h). The partial gradients are added up in their order.

namespace trainyard::kernels {
namespace {

using Desc = dnnl::memory::desc;
using dnnl::convolution_backward_weights;

// One kernel after the other, in the same scratch.
absl::StatusOr<Kernel> InTurn(Kernel first, absl::StatusOr<Kernel> second) {
  if (!second.ok()) return second;
  const size_t scratch = std::max(first.scratch_bytes, second->scratch_bytes);
  return Kernel{
      [first = std::move(first.launch), second = std::move(second->launch)](Stream& stream) {
        first(stream);
        second(stream);
      },
      scratch};
}

// Floats in scratch, `count` partial results of `each`, the first of which becomes their sum.
struct Partials {
  size_t offset;
  int64_t count, each;

  void Sum(const VectorTable& vectors, int threads, void* scratch) const {
    constexpr int64_t kBlock = 4096;  // that the first cache holds
    float* const sum = reinterpret_cast<float*>(static_cast<char*>(scratch) + offset);
    if (count == 1) return;
    ParallelRuns(threads, each, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t n = std::min(kBlock, end - at);
        for (int64_t i = 1; i < count; ++i) {
          vectors.f32.add(sum + at, sum + i * each + at, sum + at, n);
        }
      }
    });
  }
};

// One slice of the outputs, as if there were no others.
struct Slice {
  ConvolutionShape shape;
  int64_t first;  // output
};

std::vector<Slice> SlicesOf(const ConvolutionShape& s) {
  constexpr int64_t kBlock = 16;  // channels of oneDNN's blocks
  const int64_t count = scratch::WeightsSlices(s);
  std::vector<Slice> slices;
  for (int64_t i = 0; i < count; ++i) {
    const auto begin = [&](int64_t j) { return s.out / kBlock * j / count * kBlock; };
    Slice& slice = slices.emplace_back(Slice{s, count == 1 ? 0 : begin(i)});
    if (count > 1) slice.shape.out = begin(i + 1) - begin(i);
  }
  return slices;
}

// Brings what a thread keeps, laid out as `kept`, to `to`.
PieceStep FromKept(const Dnnl& dnnl, const Desc& kept, const DnnlOperand& to) {
  PieceStep step = ReorderStep(dnnl, {DNNL_ARG_FROM, kept}, to);
  step.operands = {{DNNL_ARG_TO, to.shape, to.data, to.scratch_offset}};
  step.kept = {{DNNL_ARG_FROM, kept}};
  return step;
}

struct Program {
  Staging staging;
  SharedPieces pieces;
  std::vector<Partials> partials;
  std::vector<DnnlCall> results;  // bring the sums to dw and dbias
};

// Puts a program together, slice by slice.
class Slices {
 public:
  Slices(const Dnnl& dnnl, const VectorTable& vectors, int threads,
         const ConvolutionBackwardWeights& op)
      : dnnl_(dnnl),
        vectors_(vectors),
        threads_(threads),
        op_(op),
        staging_(!dnnl.Computes(op.x.dtype), false, vectors, threads, layout_),
        all_(op.shape, WholeOf(op.shape), staging_.TypeOf(op.x), dnnl::memory::data_type::f32),
        x_(staging_.Read(DNNL_ARG_SRC, all_.x, op.x)),
        dy_(staging_.Read(DNNL_ARG_DIFF_DST, all_.y, op.dy)),
        cut_(scratch::WeightsCut(op.shape)) {}

  Kernel Prepare() && {
    for (const Slice& slice : SlicesOf(op_.shape)) Add(slice);
    SharedPieces pieces(dnnl_, threads_, std::move(pieces_), layout_);
    // Shared only because a std::function must be copyable.
    const auto program = std::make_shared<const Program>(
        Program{std::move(staging_), std::move(pieces), std::move(partials_), std::move(results_)});
    return Kernel{
        [&dnnl = dnnl_, &vectors = vectors_, threads = threads_, program](Stream& stream) {
          dnnl.UseThreads();
          program->staging.Fill(stream.scratch);
          program->pieces.Run(dnnl, threads, stream.scratch);
          for (const Partials& partials : program->partials) {
            partials.Sum(vectors, threads, stream.scratch);
          }
          for (const DnnlCall& call : program->results) call.Run(stream.scratch);
        },
        layout_.size()};
  }

 private:
  struct Prepared {
    convolution_backward_weights primitive;
    Desc scratchpad;
  };

  // Where the partial results of a slice lie: `shape` each.
  struct Places {
    Desc shape;
    DnnlOperand result;  // where their sum belongs
    bool direct;         // there is one, and it lies there
    size_t first = 0;

    DnnlOperand Of(int64_t part) const {
      DnnlOperand place = result;
      if (direct) return place;
      place.shape = shape;
      place.data = nullptr;
      place.scratch_offset = first + part * shape.get_size();
      return place;
    }
  };

  Places PlacesFor(const Desc& shape, const DnnlOperand& result) {
    Places places{shape, result, cut_.count() == 1 && !op_.accumulate && shape == result.shape};
    if (places.direct) return places;
    places.first = layout_.Take(cut_.count() * shape.get_size());
    partials_.push_back(
        {places.first, cut_.count(), static_cast<int64_t>(shape.get_size() / sizeof(float))});
    return places;
  }

  void AddResult(const Places& places) {
    if (places.direct) return;
    results_.push_back(Reorder(dnnl_, places.Of(0), places.result, op_.accumulate, layout_));
  }

  convolution_backward_weights::primitive_desc DescOf(const ConvolutionDescs& d,
                                                      const Desc& w) const {
    using Weights = convolution_backward_weights::desc;
    ConvolutionDescs forward = d;
    forward.w_any = Desc(d.w.dims(), d.x.data_type(), dnnl::memory::format_tag::any);
    const bool bias = static_cast<bool>(op_.dbias);
    const Weights desc =
        bias ? Weights(kDirectConvolution, d.x, w, d.bias, d.y, d.stride, d.pad_before, d.pad_after)
             : Weights(kDirectConvolution, d.x, w, d.y, d.stride, d.pad_before, d.pad_after);
    return {desc, UserScratch(), dnnl_.engine(), ForwardOf(dnnl_, forward, bias)};
  }

  void Add(const Slice& slice) {
    const ConvolutionShape& s = slice.shape;
    const std::vector<ConvolutionPiece> cut = ForwardPieces(s, cut_);
    const ConvolutionDescs slice_descs(s, WholeOf(s), all_.x.data_type(), all_.w.data_type());
    // The first primitive chooses the layout for all, so that partial gradients can be added up.
    std::map<PieceGeometry, Prepared> prepared;
    Desc w = slice_descs.w_any;
    for (const ConvolutionPiece& p : cut) {
      if (prepared.count(p.geometry) > 0) continue;
      const OneThread one(dnnl_);
      const auto pd = DescOf({s, p.geometry, all_.x.data_type(), all_.w.data_type()}, w);
      w = pd.diff_weights_desc();
      prepared.emplace(p.geometry,
                       Prepared{convolution_backward_weights(pd), pd.scratchpad_desc()});
    }
    const int64_t weights_each = scratch::WeightsOf(s) / s.out;
    // Blocks of oneDNN's that are mostly padding are too large to keep one for each part.
    const bool padded = w.get_size() > 2 * slice_descs.w.get_size();
    const Places dw =
        PlacesFor(padded ? slice_descs.w : w, PartOf({DNNL_ARG_DIFF_WEIGHTS, all_.w, op_.dw.data},
                                                     slice.first * weights_each, slice_descs.w));
    Places dbias;
    if (op_.dbias) {
      dbias = PlacesFor(slice_descs.bias, PartOf({DNNL_ARG_DIFF_BIAS, all_.bias, op_.dbias.data},
                                                 slice.first, slice_descs.bias));
    }
    const DnnlOperand dense = DenseOf(slice, slice_descs.y);
    for (size_t part = 0; part < cut.size(); ++part) {
      const ConvolutionPiece& p = cut[part];
      const ConvolutionDescs d(s, p.geometry, all_.x.data_type(), all_.w.data_type());
      const Prepared& made = prepared.at(p.geometry);
      const DnnlOperand dy = PartOf(dense, p.y_at(s), d.y);
      Piece& piece = pieces_.emplace_back();
      if (s.out != op_.shape.out) piece.push_back(CopyOf(slice, p, d.y, dy));
      piece.push_back({made.primitive, made.scratchpad, {PartOf(x_, p.x_at(s), d.x), dy}});
      PieceStep& step = piece.back();
      if (op_.dbias) step.operands.push_back(dbias.Of(static_cast<int64_t>(part)));
      const DnnlOperand place = dw.Of(static_cast<int64_t>(part));
      if (padded) {
        step.kept.push_back({DNNL_ARG_DIFF_WEIGHTS, w});
        const OneThread one(dnnl_);
        piece.push_back(FromKept(dnnl_, w, place));
      } else {
        step.operands.push_back(place);
      }
    }
    AddResult(dw);
    if (op_.dbias) AddResult(dbias);
  }

  // Where dy lies densely for a slice: in scratch unless the slice is all of it.
  DnnlOperand DenseOf(const Slice& slice, const Desc& y) {
    if (slice.shape.out == op_.shape.out) return dy_;
    return {DNNL_ARG_DIFF_DST, y, nullptr, layout_.Take(y.get_size())};
  }

  // Copies the piece's part of dy to `dense`, of shape `y`.
  PieceStep CopyOf(const Slice& slice, const ConvolutionPiece& p, const Desc& y,
                   const DnnlOperand& dense) const {
    const int64_t out = op_.shape.out, row = op_.shape.out_width() * out;
    const Desc strided(y.dims(), y.data_type(), {op_.shape.out_height() * row, 1, row, out});
    const OneThread one(dnnl_);
    return ReorderStep(dnnl_, PartOf(dy_, p.y_at(op_.shape) + slice.first, strided), dense);
  }

  const Dnnl& dnnl_;
  const VectorTable& vectors_;
  const int threads_;
  const ConvolutionBackwardWeights op_;
  ScratchLayout layout_;
  Staging staging_;
  const ConvolutionDescs all_;
  const DnnlOperand x_, dy_;
  const scratch::ConvolutionCut cut_;
  std::vector<Piece> pieces_;
  std::vector<Partials> partials_;
  std::vector<DnnlCall> results_;
};

// Of windows of one pixel: dw = dy^T x.
bool IsProduct(const ConvolutionShape& s) {
  return s.kernel_height == 1 && s.kernel_width == 1 && s.stride == 1 && s.pad == 0 &&
         s.groups == 1;
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const ConvolutionBackwardWeights& op) {
  const ConvolutionShape& s = op.shape;
  const int64_t rows = s.batch * s.out_height() * s.out_width();
  const auto with_bias = [&](absl::StatusOr<Kernel> weights) -> absl::StatusOr<Kernel> {
    if (!weights.ok() || !op.dbias) return weights;
    return InTurn(
        *std::move(weights),
        Prepare(ColumnSum{
            .x = op.dy, .y = op.dbias, .rows = rows, .cols = s.out, .accumulate = op.accumulate}));
  };
  if (ProductsInF32(dnnl_, op.x.dtype)) {
    if (scratch::SuitsWinograd(s))
      return with_bias(WinogradBackwardWeights(vectors_, threads_, op));
    if (scratch::SuitsWeightGradient(s)) return with_bias(WeightGradient(vectors_, threads_, op));
  } else if (IsProduct(s)) {
    return with_bias(Bind(Matmul{.a = op.dy,
                                 .b = op.x,
                                 .c = op.dw,
                                 .m = s.out,
                                 .n = s.in,
                                 .k = rows,
                                 .transpose_a = true,
                                 .accumulate = op.accumulate}));
  }
  return dnnl_.Guard<Kernel>("convolution backward weights",
                             [&] { return Slices(dnnl_, vectors_, threads_, op).Prepare(); });
}

}  // namespace trainyard::kernels
