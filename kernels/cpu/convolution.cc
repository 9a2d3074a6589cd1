#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"

// Activations stay in nhwc. oneDNN chooses the layout of the weights; they are reordered into
// scratch, or out of it, within the launch, because the optimizer owns them in the layout of the
// contract.

namespace trainyard::kernels {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
constexpr auto kF32 = dnnl::memory::data_type::f32;

struct Descs {
  Desc x, y, w, w_any, bias;
  Dims stride, pad;
};

Descs DescsOf(const ConvolutionShape& s) {
  // Weights of groups lie as [out, in / groups, …] does.
  const bool grouped = s.groups > 1;
  Dims w = {s.out / s.groups, s.in / s.groups, s.kernel_height, s.kernel_width};
  if (grouped) w.insert(w.begin(), s.groups);
  return {
      .x = Desc({s.batch, s.in, s.height, s.width}, kF32, Tag::nhwc),
      .y = Desc({s.batch, s.out, s.out_height(), s.out_width()}, kF32, Tag::nhwc),
      .w = Desc(w, kF32, grouped ? Tag::goihw : Tag::oihw),
      .w_any = Desc(w, kF32, Tag::any),
      .bias = Desc({s.out}, kF32, Tag::x),
      .stride = {s.stride, s.stride},
      .pad = {s.pad, s.pad},
  };
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

dnnl::primitive_attr UserScratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// Copies between two layouts of the same tensor; adds to what is there when asked.
DnnlCall Reorder(const Dnnl& dnnl, const DnnlOperand& from, const DnnlOperand& to, bool add,
                 ScratchLayout& layout) {
  dnnl::primitive_attr attributes = UserScratch();
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::reorder::primitive_desc pd(dnnl.engine(), from.shape, dnnl.engine(), to.shape,
                                         attributes);
  const Desc scratch = pd.scratchpad_desc();
  return DnnlCall(dnnl::reorder(pd), dnnl.stream(),
                  {{DNNL_ARG_FROM, from.shape, from.data, from.scratch_offset},
                   {DNNL_ARG_TO, to.shape, to.data, to.scratch_offset},
                   {DNNL_ARG_SCRATCHPAD, scratch, nullptr, layout.Take(scratch.get_size())}});
}

Kernel InSequence(const Dnnl& dnnl, std::vector<DnnlCall> calls, const ScratchLayout& layout) {
  // Shared only because a std::function must be copyable.
  auto shared = std::make_shared<const std::vector<DnnlCall>>(std::move(calls));
  return Kernel{[&dnnl, shared](Stream& stream) {
                  dnnl.UseThreads();
                  for (const DnnlCall& call : *shared) call.Run(stream.scratch);
                },
                layout.size()};
}

dnnl::convolution_forward::primitive_desc ForwardOf(const Dnnl& dnnl, const Descs& d, bool bias) {
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
  const auto desc = bias ? dnnl::convolution_forward::desc(kKind, kAlgorithm, d.x, d.w_any, d.bias,
                                                           d.y, d.stride, d.pad, d.pad)
                         : dnnl::convolution_forward::desc(kKind, kAlgorithm, d.x, d.w_any, d.y,
                                                           d.stride, d.pad, d.pad);
  return {desc, UserScratch(), dnnl.engine()};
}

// The weights where the primitive wants them: in place, or reordered into scratch by a call
// appended to `calls`.
DnnlOperand WeightsFor(const Dnnl& dnnl, int argument, const Desc& wanted, const Desc& plain,
                       void* w, ScratchLayout& layout, std::vector<DnnlCall>& calls) {
  if (wanted == plain) return {argument, plain, w};
  const DnnlOperand in_scratch{argument, wanted, nullptr, layout.Take(wanted.get_size())};
  calls.push_back(Reorder(dnnl, {argument, plain, w}, in_scratch, false, layout));
  return in_scratch;
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const ConvolutionForward& op) {
  absl::Status ok = CheckOperands(
      "convolution", {{"x", op.x}, {"w", op.w}, {"bias", op.bias, DType::kF32, true}, {"y", op.y}});
  if (ok.ok()) ok = CheckShape(op.shape);
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("convolution", [&] {
    const Descs d = DescsOf(op.shape);
    const auto pd = ForwardOf(dnnl_, d, static_cast<bool>(op.bias));
    ScratchLayout layout;
    std::vector<DnnlCall> calls;
    const DnnlOperand w =
        WeightsFor(dnnl_, DNNL_ARG_WEIGHTS, pd.weights_desc(), d.w, op.w.data, layout, calls);
    std::vector<DnnlOperand> operands = {
        {DNNL_ARG_SRC, d.x, op.x.data},
        w,
        {DNNL_ARG_DST, d.y, op.y.data},
        {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
         layout.Take(pd.scratchpad_desc().get_size())},
    };
    if (op.bias) operands.push_back({DNNL_ARG_BIAS, d.bias, op.bias.data});
    calls.emplace_back(dnnl::convolution_forward(pd), dnnl_.stream(), operands);
    return InSequence(dnnl_, std::move(calls), layout);
  });
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const ConvolutionBackwardData& op) {
  absl::Status ok =
      CheckOperands("convolution backward data", {{"dy", op.dy}, {"w", op.w}, {"dx", op.dx}});
  if (ok.ok()) ok = CheckShape(op.shape);
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("convolution backward data", [&] {
    const Descs d = DescsOf(op.shape);
    const dnnl::convolution_backward_data::primitive_desc pd(
        dnnl::convolution_backward_data::desc(dnnl::algorithm::convolution_direct, d.x, d.w_any,
                                              d.y, d.stride, d.pad, d.pad),
        UserScratch(), dnnl_.engine(), ForwardOf(dnnl_, d, false));
    ScratchLayout layout;
    std::vector<DnnlCall> calls;
    const DnnlOperand w =
        WeightsFor(dnnl_, DNNL_ARG_WEIGHTS, pd.weights_desc(), d.w, op.w.data, layout, calls);
    calls.emplace_back(dnnl::convolution_backward_data(pd), dnnl_.stream(),
                       std::vector<DnnlOperand>{
                           {DNNL_ARG_DIFF_DST, d.y, op.dy.data},
                           w,
                           {DNNL_ARG_DIFF_SRC, d.x, op.dx.data},
                           {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                            layout.Take(pd.scratchpad_desc().get_size())},
                       });
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
    const Descs d = DescsOf(op.shape);
    const bool bias = static_cast<bool>(op.dbias);
    constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
    const auto desc = bias ? dnnl::convolution_backward_weights::desc(
                                 kAlgorithm, d.x, d.w_any, d.bias, d.y, d.stride, d.pad, d.pad)
                           : dnnl::convolution_backward_weights::desc(kAlgorithm, d.x, d.w_any, d.y,
                                                                      d.stride, d.pad, d.pad);
    const dnnl::convolution_backward_weights::primitive_desc pd(desc, UserScratch(), dnnl_.engine(),
                                                                ForwardOf(dnnl_, d, bias));
    // oneDNN overwrites: to accumulate, its result goes to scratch and is added from there.
    ScratchLayout layout;
    const Desc w = pd.diff_weights_desc();
    DnnlOperand dw{DNNL_ARG_DIFF_WEIGHTS, w, op.dw.data};
    const bool dw_direct = w == d.w && !op.accumulate;
    if (!dw_direct) dw = {DNNL_ARG_DIFF_WEIGHTS, w, nullptr, layout.Take(w.get_size())};
    DnnlOperand dbias{DNNL_ARG_DIFF_BIAS, d.bias, op.dbias.data};
    if (bias && op.accumulate) {
      dbias = {DNNL_ARG_DIFF_BIAS, d.bias, nullptr, layout.Take(d.bias.get_size())};
    }
    std::vector<DnnlOperand> operands = {
        {DNNL_ARG_SRC, d.x, op.x.data},
        {DNNL_ARG_DIFF_DST, d.y, op.dy.data},
        dw,
        {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
         layout.Take(pd.scratchpad_desc().get_size())},
    };
    if (bias) operands.push_back(dbias);
    std::vector<DnnlCall> calls;
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
