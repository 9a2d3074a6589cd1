#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/f32_twins.h"
#include "kernels/cpu/operands.h"

namespace trainyard::kernels {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;

// [rows, cols], read from memory that holds its transpose when asked; `step` elements lie between
// the starts of two stored rows, 0: they are dense.
Desc MatrixDesc(int64_t rows, int64_t cols, dnnl::memory::data_type type, bool transposed,
                int64_t step = 0) {
  if (step == 0) step = transposed ? rows : cols;
  const Dims strides = transposed ? Dims{1, step} : Dims{step, 1};
  return Desc({rows, cols}, type, strides);
}

// Elements from the first to the last of a stored matrix.
int64_t SpanOf(int64_t rows, int64_t cols, int64_t step) { return (rows - 1) * step + cols; }

// Rows of b that lie a multiple of 4 KiB apart share their sets of the cache: oneDNN's copies of
// them run at half speed. Such a matrix is packed first, row by row, into scratch.
bool PacksB(const Matmul& op, dnnl::memory::data_type type) {
  return type == dnnl::memory::data_type::f32 && !op.transpose_b && op.n % 1024 == 0 && op.m >= 64;
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const Matmul& op) {
  const DType type = op.a.dtype;
  const DType of_c = op.c.dtype == type ? type : DType::kF32;
  absl::Status ok = CheckOperands("matmul", {{"a", op.a, type},
                                             {"b", op.b, type},
                                             {"bias", op.bias, DType::kF32, true},
                                             {"c", op.c, of_c}});
  if (ok.ok()) ok = CheckElement("matmul", type);
  if (ok.ok()) ok = CheckSizes("matmul", {{"m", op.m}, {"n", op.n}, {"k", op.k}});
  if (ok.ok() && !op.valid()) ok = absl::InvalidArgumentError("matmul: scale or strides");
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("matmul", [&] {
    ScratchLayout layout;
    F32Twins twins(dnnl_, vectors_, threads_, type, layout);
    const Desc a = MatrixDesc(op.m, op.k, twins.TypeOf(op.a), op.transpose_a, op.a_stride);
    const Desc b = MatrixDesc(op.k, op.n, twins.TypeOf(op.b), op.transpose_b);
    const Desc c = MatrixDesc(op.m, op.n, twins.TypeOf(op.c), false, op.c_stride);
    const Desc bias = op.bias ? MatrixDesc(1, op.n, twins.TypeOf(op.bias), false) : Desc();
    dnnl::primitive_attr attributes = UserScratch();
    if (op.scale != 1) attributes.set_output_scales(0, {op.scale});
    if (op.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const Desc wanted = PacksB(op, b.data_type())
                            ? Desc({op.k, op.n}, b.data_type(), dnnl::memory::format_tag::any)
                            : b;
    const dnnl::matmul::primitive_desc pd(
        op.bias ? dnnl::matmul::desc(a, wanted, bias, c) : dnnl::matmul::desc(a, wanted, c),
        attributes, dnnl_.engine());
    std::vector<DnnlCall> calls;
    const int64_t a_span = SpanOf(op.transpose_a ? op.k : op.m, op.stored_a_cols(), op.step_of_a());
    const int64_t c_span = SpanOf(op.m, op.n, op.step_of_c());
    std::vector<DnnlOperand> operands = {
        twins.Read(DNNL_ARG_SRC, a, op.a, a_span),
        InputFor(dnnl_, pd.weights_desc(), twins.Read(DNNL_ARG_WEIGHTS, b, op.b), layout, calls),
        op.accumulate ? twins.Update(DNNL_ARG_DST, c, op.c, c_span)
                      : twins.Write(DNNL_ARG_DST, c, op.c),
        {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
         layout.Take(pd.scratchpad_desc().get_size())}};
    if (op.bias) operands.push_back({DNNL_ARG_BIAS, bias, op.bias.data});
    calls.emplace_back(dnnl::matmul(pd), dnnl_.stream(), operands);
    return InSequence(dnnl_, std::move(twins), std::move(calls), layout);
  });
}

}  // namespace trainyard::kernels
