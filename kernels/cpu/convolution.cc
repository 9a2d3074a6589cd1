#include <algorithm>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/staging.h"
#include "kernels/cpu/weight_gradient.h"
#include "kernels/cpu/winograd.h"
#include "kernels/ops/column_sum.h"

// Winograd's algorithm and the gradient by weights are our own where they suit the shape and
// products of the type are made in fp32; oneDNN computes the rest. Activations are NHWC and weights
// have the layout of the contract. For oneDNN weights are reordered to its own layout, or from it,
// in scratch and within the launch.

namespace trainyard::kernels {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

// Descriptors of the operands as they lie in the arena; w_any lets oneDNN choose the layout of the
// weights.
struct Descs {
  Desc x, y, w, bias;
  Desc w_any;
  Dims stride, pad;
};

constexpr dnnl::algorithm kDirect = dnnl::algorithm::convolution_direct;

dnnl::convolution_forward::primitive_desc ForwardOf(const Dnnl& dnnl, const Descs& d, bool bias) {
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  const auto desc = bias ? dnnl::convolution_forward::desc(kKind, kDirect, d.x, d.w_any, d.bias,
                                                           d.y, d.stride, d.pad, d.pad)
                         : dnnl::convolution_forward::desc(kKind, kDirect, d.x, d.w_any, d.y,
                                                           d.stride, d.pad, d.pad);
  return {desc, UserScratch(), dnnl.engine()};
}

// `type` of x and y, `of_w` of the weights or their gradient; biases are fp32.
Descs DescsOf(const ConvolutionShape& s, Type type, Type of_w) {
  // Weights as [groups, out / groups, in / groups, …] lie in memory as [out, in / groups, …] do.
  const bool grouped = s.groups > 1;
  Dims w = {s.out / s.groups, s.in / s.groups, s.kernel_height, s.kernel_width};
  if (grouped) w.insert(w.begin(), s.groups);
  const Dims x = {s.batch, s.in, s.height, s.width};
  const Dims y = {s.batch, s.out, s.out_height(), s.out_width()};
  return {
      .x = Desc(x, type, Tag::nhwc),
      .y = Desc(y, type, Tag::nhwc),
      .w = Desc(w, of_w, grouped ? Tag::goihw : Tag::oihw),
      .bias = Desc({s.out}, Type::f32, Tag::x),
      .w_any = Desc(w, of_w, Tag::any),
      .stride = {s.stride, s.stride},
      .pad = {s.pad, s.pad},
  };
}

// Whether products of `type` are made in fp32 here: those of f32, and of types that the CPU has no
// instructions for.
bool InF32(const Dnnl& dnnl, DType type) { return type == DType::kF32 || !dnnl.Computes(type); }

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

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const ConvolutionForward& op) {
  const DType type = op.x.dtype;
  if (InF32(dnnl_, type) && scratch::SuitsWinograd(op.shape)) {
    return WinogradForward(vectors_, threads_, op);
  }
  return dnnl_.Guard<Kernel>("convolution", [&] {
    ScratchLayout layout;
    Staging staging(!dnnl_.Computes(type), false, vectors_, threads_, layout);
    const Descs d = DescsOf(op.shape, staging.TypeOf(op.x), staging.TypeOf(op.w));
    const auto pd = ForwardOf(dnnl_, d, static_cast<bool>(op.bias));
    std::vector<DnnlCall> calls;
    std::vector<DnnlOperand> operands = {
        staging.Read(DNNL_ARG_SRC, d.x, op.x),
        InputFor(dnnl_, pd.weights_desc(), staging.Read(DNNL_ARG_WEIGHTS, d.w, op.w), layout,
                 calls),
        staging.Write(DNNL_ARG_DST, d.y, op.y),
        {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
         layout.Take(pd.scratchpad_desc().get_size())}};
    if (op.bias) operands.push_back({DNNL_ARG_BIAS, d.bias, op.bias.data});
    calls.emplace_back(dnnl::convolution_forward(pd), dnnl_.stream(), operands);
    return InSequence(dnnl_, std::move(staging), std::move(calls), layout);
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const ConvolutionBackwardData& op) {
  const DType type = op.dy.dtype;
  if (InF32(dnnl_, type) && scratch::SuitsWinograd(op.shape)) {
    return WinogradBackwardData(vectors_, threads_, op);
  }
  return dnnl_.Guard<Kernel>("convolution backward data", [&] {
    ScratchLayout layout;
    Staging staging(!dnnl_.Computes(type), false, vectors_, threads_, layout);
    const Descs d = DescsOf(op.shape, staging.TypeOf(op.dx), staging.TypeOf(op.w));
    const dnnl::convolution_backward_data::primitive_desc pd(
        dnnl::convolution_backward_data::desc(kDirect, d.x, d.w_any, d.y, d.stride, d.pad, d.pad),
        UserScratch(), dnnl_.engine(), ForwardOf(dnnl_, d, false));
    std::vector<DnnlCall> calls;
    const DnnlOperand dy = staging.Read(DNNL_ARG_DIFF_DST, d.y, op.dy);
    const DnnlOperand w = InputFor(dnnl_, pd.weights_desc(),
                                   staging.Read(DNNL_ARG_WEIGHTS, d.w, op.w), layout, calls);
    const DnnlOperand dx = staging.Write(DNNL_ARG_DIFF_SRC, d.x, op.dx);
    const DnnlOperand scratch{DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                              layout.Take(pd.scratchpad_desc().get_size())};
    calls.emplace_back(dnnl::convolution_backward_data(pd), dnnl_.stream(),
                       std::vector<DnnlOperand>{dy, w, dx, scratch});
    return InSequence(dnnl_, std::move(staging), std::move(calls), layout);
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const ConvolutionBackwardWeights& op) {
  const DType type = op.x.dtype;
  const bool winograd = scratch::SuitsWinograd(op.shape);
  if (InF32(dnnl_, type) && (winograd || scratch::SuitsWeightGradient(op.shape))) {
    absl::StatusOr<Kernel> weights = winograd ? WinogradBackwardWeights(vectors_, threads_, op)
                                              : WeightGradient(vectors_, threads_, op);
    if (!weights.ok() || !op.dbias) return weights;
    const ConvolutionShape& s = op.shape;
    return InTurn(*std::move(weights),
                  Prepare(ColumnSum{.x = op.dy,
                                    .y = op.dbias,
                                    .rows = s.batch * s.out_height() * s.out_width(),
                                    .cols = s.out,
                                    .accumulate = op.accumulate}));
  }
  return dnnl_.Guard<Kernel>("convolution backward weights", [&] {
    ScratchLayout layout;
    Staging staging(!dnnl_.Computes(type), false, vectors_, threads_, layout);
    const Descs d = DescsOf(op.shape, staging.TypeOf(op.x), Type::f32);
    const Descs forward = DescsOf(op.shape, staging.TypeOf(op.x), staging.TypeOf(op.x));
    const bool bias = static_cast<bool>(op.dbias);
    const auto desc = bias ? dnnl::convolution_backward_weights::desc(kDirect, d.x, d.w_any, d.bias,
                                                                      d.y, d.stride, d.pad, d.pad)
                           : dnnl::convolution_backward_weights::desc(kDirect, d.x, d.w_any, d.y,
                                                                      d.stride, d.pad, d.pad);
    const dnnl::convolution_backward_weights::primitive_desc pd(desc, UserScratch(), dnnl_.engine(),
                                                                ForwardOf(dnnl_, forward, bias));
    // oneDNN overwrites: to accumulate, its result goes to scratch and is added from there.
    std::vector<DnnlCall> calls;
    const DnnlOperand x = staging.Read(DNNL_ARG_SRC, d.x, op.x);
    const DnnlOperand dy = staging.Read(DNNL_ARG_DIFF_DST, d.y, op.dy);
    const Desc w = pd.diff_weights_desc();
    DnnlOperand dw{DNNL_ARG_DIFF_WEIGHTS, w, op.dw.data};
    const bool dw_direct = w == d.w && !op.accumulate;
    if (!dw_direct) dw = {DNNL_ARG_DIFF_WEIGHTS, w, nullptr, layout.Take(w.get_size())};
    DnnlOperand dbias{DNNL_ARG_DIFF_BIAS, d.bias, op.dbias.data};
    if (bias && op.accumulate) {
      dbias = {DNNL_ARG_DIFF_BIAS, d.bias, nullptr, layout.Take(d.bias.get_size())};
    }
    std::vector<DnnlOperand> operands = {x,
                                         dy,
                                         dw,
                                         {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                                          layout.Take(pd.scratchpad_desc().get_size())}};
    if (bias) operands.push_back(dbias);
    calls.emplace_back(dnnl::convolution_backward_weights(pd), dnnl_.stream(), operands);
    if (!dw_direct) {
      calls.push_back(Reorder(dnnl_, dw, {DNNL_ARG_TO, d.w, op.dw.data}, op.accumulate, layout));
    }
    if (bias && op.accumulate) {
      calls.push_back(Reorder(dnnl_, dbias, {DNNL_ARG_TO, d.bias, op.dbias.data}, true, layout));
    }
    return InSequence(dnnl_, std::move(staging), std::move(calls), layout);
  });
}

}  // namespace trainyard::kernels
