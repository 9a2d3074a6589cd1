#pragma once

// Scratch of matrix products: what is ours by kernels/scratch/, what libraries take by bounds.
//
// What oneDNN 2.6 asks for was read off its primitives for AVX2 and AVX-512, with and without bf16,
// and AMX, with 1, 2 and 8 threads. How it cuts its work depends on caches and threads: what counts
// is the most that any of its ways takes. tests/unit/engine/workspace_test.cc holds it to that.

#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

inline double ProductFlops(int64_t m, int64_t n, int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// What an op that reads `type` takes on any CPU: `wide` bytes with fp32 copies of its operands, as
// fp16 always has and bf16 where the CPU has no instructions for it, and `narrow` bytes in bf16
// where it has them. Nobody knows yet which machine it will be: the plan must hold on either.
int64_t OnAnyCpu(ElementType type, int64_t wide, int64_t narrow);

// Of product `o`, whose operands are of type `a`, and whose result is of type `c`; the rows of
// either may lie apart.
int64_t CpuProductScratch(const Matmul& o, ElementType a, bool a_apart, ElementType c,
                          bool c_apart);
// Of a product with dense operands in bf16 by the CPU's instructions for it, beside staged copies.
int64_t NarrowProductScratch(const Matmul& o);
// cuBLASLt's workspace, a bias in the type of the result, and a copy of b if the product grows.
// `a_stride` and `c_stride`: from row to row of tensors of 16 bits whose rows lie apart, or 0.
int64_t GpuProductScratch(const Matmul& o, int64_t a_stride = 0, int64_t c_stride = 0);

}  // namespace trainyard::plan
