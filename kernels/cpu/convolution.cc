#include <algorithm>
#include <map>
#include <utility>

#include "kernels/cpu/convolution_pieces.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/winograd.h"

// Winograd's algorithm and the gradient by weights are our own where they suit the shape and
// products of the type are made in fp32; oneDNN computes the rest, in pieces that one thread makes
// (kernels/scratch/convolution.h). Activations are NHWC and weights have the layout of the
// contract. For oneDNN weights are reordered to its own layout in scratch and within the launch.

namespace trainyard::kernels {
namespace {

using Desc = dnnl::memory::desc;

struct Program {
  Staging staging;
  std::vector<DnnlCall> weights;  // brings them into the layout that the pieces read
  SharedPieces pieces;
};

// What is left to do once the pieces are known: `program` lacks them.
Kernel KernelOf(const Dnnl& dnnl, int threads, Program program, std::vector<Piece> pieces,
                ScratchLayout& layout) {
  program.pieces = SharedPieces(dnnl, threads, std::move(pieces), layout);
  // Shared only because a std::function must be copyable.
  const auto shared = std::make_shared<const Program>(std::move(program));
  return Kernel{[&dnnl, threads, shared](Stream& stream) {
                  dnnl.UseThreads();
                  shared->staging.Fill(stream.scratch);
                  for (const DnnlCall& call : shared->weights) call.Run(stream.scratch);
                  shared->pieces.Run(dnnl, threads, stream.scratch);
                  shared->staging.BringBack(stream.scratch);
                },
                layout.size()};
}

// A primitive, and the layout in which it wants the weights. Those of an op are kept by the
// geometry of their pieces.
template <typename Primitive>
struct Prepared {
  template <typename PrimitiveDesc>
  explicit Prepared(const PrimitiveDesc& pd)
      : primitive(pd), scratchpad(pd.scratchpad_desc()), weights(pd.weights_desc()) {}

  Primitive primitive;
  Desc scratchpad, weights;
};

// The weights in the layouts that primitives want, mostly one.
class WeightLayouts {
 public:
  explicit WeightLayouts(const DnnlOperand& plain) : plain_(plain) {}

  const DnnlOperand& In(const Dnnl& dnnl, const Desc& wanted, ScratchLayout& layout,
                        std::vector<DnnlCall>& calls) {
    for (const DnnlOperand& known : known_) {
      if (known.shape == wanted) return known;
    }
    return known_.emplace_back(InputFor(dnnl, wanted, plain_, layout, calls));
  }

 private:
  DnnlOperand plain_;
  std::vector<DnnlOperand> known_;
};

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const ConvolutionForward& op) {
  const ConvolutionShape& s = op.shape;
  const DType type = op.x.dtype;
  if (ProductsInF32(dnnl_, type) && scratch::SuitsWinograd(s)) {
    return WinogradForward(vectors_, threads_, op);
  }
  return dnnl_.Guard<Kernel>("convolution", [&] {
    ScratchLayout layout;
    Program program{Staging(!dnnl_.Computes(type), false, vectors_, threads_, layout)};
    const ConvolutionDescs all(s, WholeOf(s), program.staging.TypeOf(op.x),
                               program.staging.TypeOf(op.w));
    const DnnlOperand x = program.staging.Read(DNNL_ARG_SRC, all.x, op.x);
    WeightLayouts weights(program.staging.Read(DNNL_ARG_WEIGHTS, all.w, op.w));
    const DnnlOperand y = program.staging.Write(DNNL_ARG_DST, all.y, op.y);
    std::map<PieceGeometry, Prepared<dnnl::convolution_forward>> prepared;
    std::vector<Piece> pieces;
    for (const ConvolutionPiece& p : ForwardPieces(s, scratch::ForwardCut(s))) {
      const ConvolutionDescs d(s, p.geometry, all.x.data_type(), all.w.data_type());
      if (prepared.count(p.geometry) == 0) {
        const OneThread one(dnnl_);
        prepared.emplace(p.geometry, ForwardOf(dnnl_, d, static_cast<bool>(op.bias)));
      }
      const auto& made = prepared.at(p.geometry);
      PieceStep step{made.primitive,
                     made.scratchpad,
                     {PartOf(x, p.x_at(s), d.x), PartOf(y, p.y_at(s), d.y),
                      weights.In(dnnl_, made.weights, layout, program.weights)}};
      if (op.bias) step.operands.push_back({DNNL_ARG_BIAS, all.bias, op.bias.data});
      pieces.push_back({std::move(step)});
    }
    return KernelOf(dnnl_, threads_, std::move(program), std::move(pieces), layout);
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const ConvolutionBackwardData& op) {
  const ConvolutionShape& s = op.shape;
  const DType type = op.dy.dtype;
  if (ProductsInF32(dnnl_, type) && scratch::SuitsWinograd(s)) {
    return WinogradBackwardData(vectors_, threads_, op);
  }
  return dnnl_.Guard<Kernel>("convolution backward data", [&] {
    ScratchLayout layout;
    Program program{Staging(!dnnl_.Computes(type), false, vectors_, threads_, layout)};
    const ConvolutionDescs all(s, WholeOf(s), program.staging.TypeOf(op.dx),
                               program.staging.TypeOf(op.w));
    const DnnlOperand dy = program.staging.Read(DNNL_ARG_DIFF_DST, all.y, op.dy);
    WeightLayouts weights(program.staging.Read(DNNL_ARG_WEIGHTS, all.w, op.w));
    const DnnlOperand dx = program.staging.Write(DNNL_ARG_DIFF_SRC, all.x, op.dx);
    std::map<PieceGeometry, Prepared<dnnl::convolution_backward_data>> prepared;
    std::vector<Piece> pieces;
    for (const ConvolutionPiece& p : DataPieces(s, scratch::DataCut(s))) {
      const ConvolutionDescs d(s, p.geometry, all.x.data_type(), all.w.data_type());
      if (prepared.count(p.geometry) == 0) {
        const OneThread one(dnnl_);
        prepared.emplace(
            p.geometry,
            dnnl::convolution_backward_data::primitive_desc(
                dnnl::convolution_backward_data::desc(kDirectConvolution, d.x, d.w_any, d.y,
                                                      d.stride, d.pad_before, d.pad_after),
                UserScratch(), dnnl_.engine(), ForwardOf(dnnl_, d, false)));
      }
      const auto& made = prepared.at(p.geometry);
      pieces.push_back({{made.primitive,
                         made.scratchpad,
                         {PartOf(dy, p.y_at(s), d.y), PartOf(dx, p.x_at(s), d.x),
                          weights.In(dnnl_, made.weights, layout, program.weights)}}});
    }
    return KernelOf(dnnl_, threads_, std::move(program), std::move(pieces), layout);
  });
}

}  // namespace trainyard::kernels
