#include <memory>

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
    const dnnl::matmul::primitive_desc pd(
        op.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c), attributes,
        dnnl_.engine());
    std::vector<DnnlOperand> operands = {
        {DNNL_ARG_SRC, a, op.a.data},
        {DNNL_ARG_WEIGHTS, b, op.b.data},
        {DNNL_ARG_DST, c, op.c.data},
        {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()},
    };
    if (op.bias) operands.push_back({DNNL_ARG_BIAS, bias, op.bias.data});
    // Shared only because a std::function must be copyable.
    auto call = std::make_shared<DnnlCall>(dnnl::matmul(pd), dnnl_.stream(), operands);
    return Kernel{[this, call](Stream& stream) {
                    dnnl_.UseThreads();
                    call->Run(stream.scratch);
                  },
                  pd.scratchpad_desc().get_size()};
  });
}

}  // namespace trainyard::kernels
