#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"

// Activations stay in nhwc and weights in the layout of the contract. What oneDNN wants elsewhere
// is reordered into scratch, or out of it, within the launch: the weights always, the activations
// for Winograd's algorithm, which takes a fraction of the multiplications (Lavin & Gray 2015).

namespace trainyard::kernels {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
constexpr auto kF32 = dnnl::memory::data_type::f32;

// Shapes as they lie in the arena, and as oneDNN is asked for them.
struct Descs {
  Desc x, y, w, bias;
  Desc x_any, y_any, w_any;
  Dims stride, pad;
  dnnl::algorithm algorithm;
};

// oneDNN has F(4x4, 3x3) for whole blocks of channels; it wins from about 64 tiles on. Its rounding
// error is about ten times that of the direct sum, still some 1e-6 of the norm.
bool SuitsWinograd(const ConvolutionShape& s) {
  const int64_t tiles = s.batch * ((s.height + 3) / 4) * ((s.width + 3) / 4);
  return s.kernel_height == 3 && s.kernel_width == 3 && s.stride == 1 && s.pad == 1 &&
         s.groups == 1 && s.in % 16 == 0 && s.out % 16 == 0 && tiles >= 64;
}

dnnl::convolution_forward::primitive_desc ForwardOf(const Dnnl& dnnl, const Descs& d, bool bias,
                                                    bool may_be_empty = false) {
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  const auto desc = bias ? dnnl::convolution_forward::desc(kKind, d.algorithm, d.x_any, d.w_any,
                                                           d.bias, d.y_any, d.stride, d.pad, d.pad)
                         : dnnl::convolution_forward::desc(kKind, d.algorithm, d.x_any, d.w_any,
                                                           d.y_any, d.stride, d.pad, d.pad);
  return {desc, UserScratch(), dnnl.engine(), may_be_empty};
}

Descs DescsOf(const Dnnl& dnnl, const ConvolutionShape& s) {
  // Weights of groups lie as [out, in / groups, …] does.
  const bool grouped = s.groups > 1;
  Dims w = {s.out / s.groups, s.in / s.groups, s.kernel_height, s.kernel_width};
  if (grouped) w.insert(w.begin(), s.groups);
  const Dims x = {s.batch, s.in, s.height, s.width};
  const Dims y = {s.batch, s.out, s.out_height(), s.out_width()};
  Descs d = {
      .x = Desc(x, kF32, Tag::nhwc),
      .y = Desc(y, kF32, Tag::nhwc),
      .w = Desc(w, kF32, grouped ? Tag::goihw : Tag::oihw),
      .bias = Desc({s.out}, kF32, Tag::x),
      .x_any = Desc(x, kF32, Tag::any),
      .y_any = Desc(y, kF32, Tag::any),
      .w_any = Desc(w, kF32, Tag::any),
      .stride = {s.stride, s.stride},
      .pad = {s.pad, s.pad},
      .algorithm = dnnl::algorithm::convolution_winograd,
  };
  if (SuitsWinograd(s) && ForwardOf(dnnl, d, false, /*may_be_empty=*/true)) return d;
  d.x_any = d.x;
  d.y_any = d.y;
  d.algorithm = dnnl::algorithm::convolution_direct;
  return d;
}

absl::Status CheckShape(const ConvolutionShape& s) {
  absl::Status ok = CheckSizes("convolution", {{"batch", s.batch},
                                               {"height", s.height},
                                               {"width", s.width},
                                               {"in", s.in},
                                               {"out", s.out},
                                               {"kernel_height", s.kernel_height},
                                               {"kernel_width", s.kernel_width},
                                               {"stride", s.stride},
                                               {"pad + 1", s.pad + 1},
                                               {"groups", s.groups}});
  if (!ok.ok()) return ok;
  if (s.in % s.groups != 0 || s.out % s.groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "convolution: ", s.groups, " groups divide not both ", s.in, " and ", s.out, " channels"));
  }
  return CheckSizes(
      "convolution",
      {{"height + 2 pad - kernel_height + 1", s.height + 2 * s.pad - s.kernel_height + 1},
       {"width + 2 pad - kernel_width + 1", s.width + 2 * s.pad - s.kernel_width + 1}});
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const ConvolutionForward& op) {
  absl::Status ok = CheckOperands(
      "convolution", {{"x", op.x}, {"w", op.w}, {"bias", op.bias, DType::kF32, true}, {"y", op.y}});
  if (ok.ok()) ok = CheckShape(op.shape);
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("convolution", [&] {
    const Descs d = DescsOf(dnnl_, op.shape);
    const auto pd = ForwardOf(dnnl_, d, static_cast<bool>(op.bias));
    ScratchLayout layout;
    std::vector<DnnlCall> calls;
    const DnnlOperand x =
        InputFor(dnnl_, DNNL_ARG_SRC, pd.src_desc(), d.x, op.x.data, layout, calls);
    const DnnlOperand w =
        InputFor(dnnl_, DNNL_ARG_WEIGHTS, pd.weights_desc(), d.w, op.w.data, layout, calls);
    const DnnlOperand y = PlaceFor(DNNL_ARG_DST, pd.dst_desc(), d.y, op.y.data, layout);
    std::vector<DnnlOperand> operands = {x,
                                         w,
                                         y,
                                         {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                                          layout.Take(pd.scratchpad_desc().get_size())}};
    if (op.bias) operands.push_back({DNNL_ARG_BIAS, d.bias, op.bias.data});
    calls.emplace_back(dnnl::convolution_forward(pd), dnnl_.stream(), operands);
    if (y.data == nullptr) {
      calls.push_back(Reorder(dnnl_, y, {DNNL_ARG_TO, d.y, op.y.data}, false, layout));
    }
    return InSequence(dnnl_, std::move(calls), layout);
  });
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const ConvolutionBackwardData& op) {
  absl::Status ok =
      CheckOperands("convolution backward data", {{"dy", op.dy}, {"w", op.w}, {"dx", op.dx}});
  if (ok.ok()) ok = CheckShape(op.shape);
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("convolution backward data", [&] {
    const Descs d = DescsOf(dnnl_, op.shape);
    const dnnl::convolution_backward_data::primitive_desc pd(
        dnnl::convolution_backward_data::desc(d.algorithm, d.x_any, d.w_any, d.y_any, d.stride,
                                              d.pad, d.pad),
        UserScratch(), dnnl_.engine(), ForwardOf(dnnl_, d, false));
    ScratchLayout layout;
    std::vector<DnnlCall> calls;
    const DnnlOperand dy =
        InputFor(dnnl_, DNNL_ARG_DIFF_DST, pd.diff_dst_desc(), d.y, op.dy.data, layout, calls);
    const DnnlOperand w =
        InputFor(dnnl_, DNNL_ARG_WEIGHTS, pd.weights_desc(), d.w, op.w.data, layout, calls);
    const DnnlOperand dx = PlaceFor(DNNL_ARG_DIFF_SRC, pd.diff_src_desc(), d.x, op.dx.data, layout);
    const DnnlOperand scratch{DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                              layout.Take(pd.scratchpad_desc().get_size())};
    calls.emplace_back(dnnl::convolution_backward_data(pd), dnnl_.stream(),
                       std::vector<DnnlOperand>{dy, w, dx, scratch});
    if (dx.data == nullptr) {
      calls.push_back(Reorder(dnnl_, dx, {DNNL_ARG_TO, d.x, op.dx.data}, false, layout));
    }
    return InSequence(dnnl_, std::move(calls), layout);
  });
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const ConvolutionBackwardWeights& op) {
  absl::Status ok = CheckOperands(
      "convolution backward weights",
      {{"x", op.x}, {"dy", op.dy}, {"dw", op.dw}, {"dbias", op.dbias, DType::kF32, true}});
  if (ok.ok()) ok = CheckShape(op.shape);
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("convolution backward weights", [&] {
    const Descs d = DescsOf(dnnl_, op.shape);
    const bool bias = static_cast<bool>(op.dbias);
    const auto desc =
        bias ? dnnl::convolution_backward_weights::desc(d.algorithm, d.x_any, d.w_any, d.bias,
                                                        d.y_any, d.stride, d.pad, d.pad)
             : dnnl::convolution_backward_weights::desc(d.algorithm, d.x_any, d.w_any, d.y_any,
                                                        d.stride, d.pad, d.pad);
    const dnnl::convolution_backward_weights::primitive_desc pd(desc, UserScratch(), dnnl_.engine(),
                                                                ForwardOf(dnnl_, d, bias));
    // oneDNN overwrites: to accumulate, its result goes to scratch and is added from there.
    ScratchLayout layout;
    std::vector<DnnlCall> calls;
    const DnnlOperand x =
        InputFor(dnnl_, DNNL_ARG_SRC, pd.src_desc(), d.x, op.x.data, layout, calls);
    const DnnlOperand dy =
        InputFor(dnnl_, DNNL_ARG_DIFF_DST, pd.diff_dst_desc(), d.y, op.dy.data, layout, calls);
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
    return InSequence(dnnl_, std::move(calls), layout);
  });
}

}  // namespace trainyard::kernels
