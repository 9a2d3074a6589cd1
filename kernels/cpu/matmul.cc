#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"

namespace trainyard::kernels {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;

// [rows, cols], read from memory that holds its transpose when asked.
Desc MatrixDesc(int64_t rows, int64_t cols, bool transposed) {
  const Dims strides = transposed ? Dims{1, rows} : Dims{cols, 1};
  return Desc({rows, cols}, dnnl::memory::data_type::f32, strides);
}

// Rows of b that lie a multiple of 4 KiB apart share their sets of the cache: oneDNN's copies of
// them run at half speed. Such a matrix is packed first, row by row, into scratch.
bool PacksB(const Matmul& op) { return !op.transpose_b && op.n % 1024 == 0 && op.m >= 64; }

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const Matmul& op) {
  absl::Status ok = CheckOperands(
      "matmul", {{"a", op.a}, {"b", op.b}, {"bias", op.bias, DType::kF32, true}, {"c", op.c}});
  if (ok.ok()) ok = CheckSizes("matmul", {{"m", op.m}, {"n", op.n}, {"k", op.k}});
  if (!ok.ok()) return ok;
  return dnnl_.Guard<Kernel>("matmul", [&] {
    const Desc a = MatrixDesc(op.m, op.k, op.transpose_a);
    const Desc b = MatrixDesc(op.k, op.n, op.transpose_b);
    const Desc c = MatrixDesc(op.m, op.n, false);
    const Desc bias = op.bias ? MatrixDesc(1, op.n, false) : Desc();
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (op.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const Desc wanted =
        PacksB(op) ? Desc({op.k, op.n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any)
                   : b;
    const dnnl::matmul::primitive_desc pd(
        op.bias ? dnnl::matmul::desc(a, wanted, bias, c) : dnnl::matmul::desc(a, wanted, c),
        attributes, dnnl_.engine());
    ScratchLayout layout;
    std::vector<DnnlCall> calls;
    const DnnlOperand weights =
        InputFor(dnnl_, DNNL_ARG_WEIGHTS, pd.weights_desc(), b, op.b.data, layout, calls);
    std::vector<DnnlOperand> operands = {{DNNL_ARG_SRC, a, op.a.data},
                                         weights,
                                         {DNNL_ARG_DST, c, op.c.data},
                                         {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                                          layout.Take(pd.scratchpad_desc().get_size())}};
    if (op.bias) operands.push_back({DNNL_ARG_BIAS, bias, op.bias.data});
    calls.emplace_back(dnnl::matmul(pd), dnnl_.stream(), operands);
    return InSequence(dnnl_, std::move(calls), layout);
  });
}

}  // namespace trainyard::kernels
