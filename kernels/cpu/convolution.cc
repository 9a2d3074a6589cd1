#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/f32_twins.h"
#include "kernels/cpu/operands.h"

// Activations stay in nhwc and weights in the layout of the contract. What oneDNN wants elsewhere
// is reordered into scratch, or out of it, within the launch: the weights always, the activations
// for Winograd's algorithm, which takes a fraction of the multiplications (Lavin & Gray 2015).

namespace trainyard::kernels {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

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

// `type` of x and y, `of_w` of the weights or their gradient; biases are fp32.
Descs DescsOf(const Dnnl& dnnl, const ConvolutionShape& s, Type type, Type of_w) {
  // Weights of groups lie as [out, in / groups, …] does.
  const bool grouped = s.groups > 1;
  Dims w = {s.out / s.groups, s.in / s.groups, s.kernel_height, s.kernel_width};
  if (grouped) w.insert(w.begin(), s.groups);
  const Dims x = {s.batch, s.in, s.height, s.width};
  const Dims y = {s.batch, s.out, s.out_height(), s.out_width()};
  Descs d = {
      .x = Desc(x, type, Tag::nhwc),
      .y = Desc(y, type, Tag::nhwc),
      .w = Desc(w, of_w, grouped ? Tag::goihw : Tag::oihw),
      .bias = Desc({s.out}, Type::f32, Tag::x),
      .x_any = Desc(x, type, Tag::any),
      .y_any = Desc(y, type, Tag::any),
      .w_any = Desc(w, of_w, Tag::any),
      .stride = {s.stride, s.stride},
      .pad = {s.pad, s.pad},
      .algorithm = dnnl::algorithm::convolution_winograd,
  };
  if (type == Type::f32 && SuitsWinograd(s) && ForwardOf(dnnl, d, false, /*may_be_empty=*/true))
    return d;
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
  const DType type = op.x.dtype;
  absl::Status ok = CheckOperands("convolution", {{"x", op.x, type},
                                                  {"w", op.w, type},
                                                  {"bias", op.bias, DType::kF32, true},
                                                  {"y", op.y, type}});
  if (ok.ok()) ok = CheckElement("convolution", type);
  if (ok.ok()) ok = CheckShape(op.shape);
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("convolution", [&] {
    ScratchLayout layout;
    F32Twins twins(dnnl_, vectors_, threads_, type, layout);
    const Descs d = DescsOf(dnnl_, op.shape, twins.TypeOf(op.x), twins.TypeOf(op.w));
    const auto pd = ForwardOf(dnnl_, d, static_cast<bool>(op.bias));
    std::vector<DnnlCall> calls;
    const DnnlOperand plain_y = twins.Write(DNNL_ARG_DST, d.y, op.y);
    const DnnlOperand y = PlaceFor(pd.dst_desc(), plain_y, layout);
    std::vector<DnnlOperand> operands = {
        InputFor(dnnl_, pd.src_desc(), twins.Read(DNNL_ARG_SRC, d.x, op.x), layout, calls),
        InputFor(dnnl_, pd.weights_desc(), twins.Read(DNNL_ARG_WEIGHTS, d.w, op.w), layout, calls),
        y,
        {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
         layout.Take(pd.scratchpad_desc().get_size())}};
    if (op.bias) operands.push_back({DNNL_ARG_BIAS, d.bias, op.bias.data});
    calls.emplace_back(dnnl::convolution_forward(pd), dnnl_.stream(), operands);
    OutputFrom(dnnl_, y, plain_y, layout, calls);
    return InSequence(dnnl_, std::move(twins), std::move(calls), layout);
  });
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const ConvolutionBackwardData& op) {
  const DType type = op.dy.dtype;
  absl::Status ok = CheckOperands("convolution backward data",
                                  {{"dy", op.dy, type}, {"w", op.w, type}, {"dx", op.dx, type}});
  if (ok.ok()) ok = CheckElement("convolution backward data", type);
  if (ok.ok()) ok = CheckShape(op.shape);
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("convolution backward data", [&] {
    ScratchLayout layout;
    F32Twins twins(dnnl_, vectors_, threads_, type, layout);
    const Descs d = DescsOf(dnnl_, op.shape, twins.TypeOf(op.dx), twins.TypeOf(op.w));
    const dnnl::convolution_backward_data::primitive_desc pd(
        dnnl::convolution_backward_data::desc(d.algorithm, d.x_any, d.w_any, d.y_any, d.stride,
                                              d.pad, d.pad),
        UserScratch(), dnnl_.engine(), ForwardOf(dnnl_, d, false));
    std::vector<DnnlCall> calls;
    const DnnlOperand dy = InputFor(dnnl_, pd.diff_dst_desc(),
                                    twins.Read(DNNL_ARG_DIFF_DST, d.y, op.dy), layout, calls);
    const DnnlOperand w =
        InputFor(dnnl_, pd.weights_desc(), twins.Read(DNNL_ARG_WEIGHTS, d.w, op.w), layout, calls);
    const DnnlOperand plain_dx = twins.Write(DNNL_ARG_DIFF_SRC, d.x, op.dx);
    const DnnlOperand dx = PlaceFor(pd.diff_src_desc(), plain_dx, layout);
    const DnnlOperand scratch{DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                              layout.Take(pd.scratchpad_desc().get_size())};
    calls.emplace_back(dnnl::convolution_backward_data(pd), dnnl_.stream(),
                       std::vector<DnnlOperand>{dy, w, dx, scratch});
    OutputFrom(dnnl_, dx, plain_dx, layout, calls);
    return InSequence(dnnl_, std::move(twins), std::move(calls), layout);
  });
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const ConvolutionBackwardWeights& op) {
  const DType type = op.x.dtype;
  absl::Status ok =
      CheckOperands("convolution backward weights", {{"x", op.x, type},
                                                     {"dy", op.dy, type},
                                                     {"dw", op.dw},
                                                     {"dbias", op.dbias, DType::kF32, true}});
  if (ok.ok()) ok = CheckElement("convolution backward weights", type);
  if (ok.ok()) ok = CheckShape(op.shape);
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("convolution backward weights", [&] {
    ScratchLayout layout;
    F32Twins twins(dnnl_, vectors_, threads_, type, layout);
    const Descs d = DescsOf(dnnl_, op.shape, twins.TypeOf(op.x), Type::f32);
    const Descs forward = DescsOf(dnnl_, op.shape, twins.TypeOf(op.x), twins.TypeOf(op.x));
    const bool bias = static_cast<bool>(op.dbias);
    const auto desc =
        bias ? dnnl::convolution_backward_weights::desc(d.algorithm, d.x_any, d.w_any, d.bias,
                                                        d.y_any, d.stride, d.pad, d.pad)
             : dnnl::convolution_backward_weights::desc(d.algorithm, d.x_any, d.w_any, d.y_any,
                                                        d.stride, d.pad, d.pad);
    const dnnl::convolution_backward_weights::primitive_desc pd(desc, UserScratch(), dnnl_.engine(),
                                                                ForwardOf(dnnl_, forward, bias));
    // oneDNN overwrites: to accumulate, its result goes to scratch and is added from there.
    std::vector<DnnlCall> calls;
    const DnnlOperand x =
        InputFor(dnnl_, pd.src_desc(), twins.Read(DNNL_ARG_SRC, d.x, op.x), layout, calls);
    const DnnlOperand dy = InputFor(dnnl_, pd.diff_dst_desc(),
                                    twins.Read(DNNL_ARG_DIFF_DST, d.y, op.dy), layout, calls);
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
    return InSequence(dnnl_, std::move(twins), std::move(calls), layout);
  });
}

}  // namespace trainyard::kernels
