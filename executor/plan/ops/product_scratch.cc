#include "executor/plan/ops/product_scratch.h"

#include <algorithm>

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/cuda.h"
#include "kernels/scratch/product.h"

namespace trainyard::plan {

namespace {

using kernels::scratch::Ceil;
using kernels::scratch::PieceSize;
using kernels::scratch::RoundUp;
using kernels::scratch::StagedSizes;

// oneDNN's copies of blocks of the operands, per thread; `least` bytes of them in bf16, with tiles
// and fp32 sums beside. A sum that is long for a result with few columns is cut: a result per
// thread.
int64_t PanelBytes(const Matmul& o, int64_t least) {
  constexpr int64_t kEdges = 1 << 10;
  const int64_t most = std::max<int64_t>(least, (o.transpose_a ? 1600 : 544) << 10);
  const int64_t all = kFloat * (RoundUp(o.m, 16) + RoundUp(o.n, 64)) * RoundUp(o.k, 16);
  const bool cut = o.transpose_a && o.k > 1024 && Ceil(o.n, 64) < kThreads;
  return kThreads * (std::min(most, all + kEdges) + (cut ? kFloat * o.m * o.n : 0));
}

// Operands that are packed first: b as a whole, or, where the product goes by tiles, b and a stored
// transposed, spread.
int64_t PackedBytes(const Matmul& o) {
  using kernels::scratch::kSpreadSet;
  const auto spread = [&](int64_t columns, int64_t row_stride) {
    return kernels::scratch::IsSpread(o.m, o.n, o.k, columns, row_stride)
               ? kernels::scratch::SpreadBytes(o.k, columns)
               : 0;
  };
  const int64_t a = o.transpose_a ? spread(o.m, o.a_cols > 0 ? kSpreadSet : o.m) : 0;
  const int64_t b = o.transpose_b ? 0 : spread(o.n, o.n);
  const bool whole = kernels::scratch::PacksB(o.m, o.n, o.transpose_b);
  return std::max(a + b, whole ? kFloat * o.k * o.n : 0);
}

// Staged copies, and what a product in fp32 takes beside: in one piece, or by pieces with the
// staged copy of the operand that all of them read.
int64_t StagedProductBytes(const Matmul& o, const StagedSizes& staged) {
  const PieceSize piece = kernels::scratch::PieceSizeOf(o.m, o.n, o.k, staged);
  const auto of_piece = [&](int64_t rows, int64_t cols) -> int64_t {
    if (rows == 0 || cols == 0) return 0;
    Matmul p = o;
    p.m = rows;
    p.n = cols;
    const int64_t a = cols < o.n ? 0 : staged.a * rows * o.k;
    const int64_t b = rows < o.m ? 0 : staged.b * o.k * cols;
    return a + b + staged.c * rows * cols + PackedBytes(p) + PanelBytes(p, 0);
  };
  if (piece.rows == o.m && piece.cols == o.n) return of_piece(o.m, o.n);
  const bool by_rows = piece.cols == o.n;
  const int64_t shared = by_rows ? staged.b * o.k * o.n : staged.a * o.m * o.k;
  return shared + std::max(of_piece(piece.rows, piece.cols), by_rows
                                                                 ? of_piece(o.m % piece.rows, o.n)
                                                                 : of_piece(o.m, o.n % piece.cols));
}

}  // namespace

int64_t OnAnyCpu(ElementType type, int64_t wide, int64_t narrow) {
  return type == ElementType::kBF16 ? std::max(wide, narrow) : wide;
}

int64_t NarrowProductScratch(const Matmul& o) {
  return PanelBytes(o, o.k > 2048 ? 4 * kMiB : kMiB);
}

// Products of types that the CPU has no instructions for are of staged copies in fp32; those by
// bf16 instructions, and in fp32 with AVX-512, of dense staged copies of what lies apart.
int64_t CpuProductScratch(const Matmul& o, ElementType a, bool a_apart, ElementType c,
                          bool c_apart) {
  if (a == ElementType::kF32) {
    const int64_t dense = (a_apart ? o.m * o.k : 0) + (c_apart ? o.m * o.n : 0);
    return kFloat * dense + PackedBytes(o) + PanelBytes(o, 0);
  }
  const bool narrow_c = c != ElementType::kF32;
  const int64_t wide = StagedProductBytes(o, {kFloat, kFloat, narrow_c ? kFloat : 0});
  const int64_t dense =
      (a_apart ? 2 * o.m * o.k : 0) + (c_apart ? (narrow_c ? 2 : kFloat) * o.m * o.n : 0);
  const bool sum = narrow_c && kernels::scratch::GoesBySlabs(o.k, o.transpose_a, o.transpose_b,
                                                             kernels::scratch::kAmxSlab);
  return OnAnyCpu(a, wide, dense + (sum ? kFloat * o.m * o.n : 0) + NarrowProductScratch(o));
}

int64_t GpuProductScratch(const Matmul& o, int64_t a_stride, int64_t c_stride) {
  namespace cuda = kernels::cuda;
  const cuda::ProductShape grown =
      cuda::PaddedProduct(o.n, o.k, o.transpose_a, o.transpose_b, a_stride, c_stride);
  const bool grows = grown.n > o.n || grown.k > o.k;
  return static_cast<int64_t>(cuda::kCublasWorkspace + cuda::kWorkspaceAlign +
                              (grows ? cuda::PaddedProductBytes(grown) : 0)) +
         kFloat * grown.n;
}

}  // namespace trainyard::plan
