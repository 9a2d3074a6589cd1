#pragma once

// How matrix products on the CPU are cut, and what is packed before them (cpu/matmul.cc). What
// oneDNN takes beside is bounded by executor/plan/ops/product_scratch.h.

#include <algorithm>

#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::scratch {

// Bytes of an element of the staged copies of a, b and c, which oneDNN sees in their place
// (cpu/staged copies.h); 0: there is none.
struct StagedSizes {
  int64_t a = 0, b = 0, c = 0;
};

// Rows and columns of c in one piece; one of the two is all of them.
struct PieceSize {
  int64_t rows = 0, cols = 0;
};

// Staged copies of more than this are not made at once: the product goes by pieces of c, and the
// operand that all pieces read has its staged copy beside.
inline constexpr int64_t kStagedBytes = 64 * kMiB;

// The pieces of c [m, n], whose operands are [m, k] and [k, n].
constexpr PieceSize PieceSizeOf(int64_t m, int64_t n, int64_t k, const StagedSizes& staged) {
  const int64_t a = staged.a * m * k, b = staged.b * k * n;
  if (a + b + staged.c * m * n <= kStagedBytes) return {m, n};
  const auto most = [](int64_t each) {
    constexpr int64_t kGrain = 64;  // rows or columns
    return std::max(kGrain, kStagedBytes / each / kGrain * kGrain);
  };
  if (b <= a) return {std::min(m, most(staged.a * k + staged.c * n)), n};
  return {m, std::min(n, most(staged.b * k + staged.c * m))};
}

// Rows of b that lie a multiple of 4 KiB apart share their sets of the cache: oneDNN's copies of
// them run at half speed. Such a matrix is packed first, row by row.
constexpr bool PacksB(int64_t m, int64_t n, bool transpose_b) {
  return !transpose_b && n % 1024 == 0 && m >= 64;
}

// Long sums over the rows of both operands are cut in slabs, which are added up in order: where
// there are more rows than this, oneDNN cuts them by the number of threads. The sum lies in fp32,
// in scratch if c is in 16 bits. In fp32 small results go by tiles.
inline constexpr int64_t kSlab = 1024;
constexpr bool GoesBySlabs(int64_t k, bool transpose_a, bool transpose_b, int64_t slab = kSlab) {
  return transpose_a && !transpose_b && k > slab;
}

// With AMX oneDNN cuts the sums of bf16 products, too, as it finds room for its blocks in the cache
// of second level, and so by the number of threads. It was found to leave whole, of all that were
// tried, sums of at most 512, and rows of a by columns of b up to 768 in whole steps of AMX.
inline constexpr int64_t kAmxSlab = 512;
constexpr bool AmxAddsAtOnce(int64_t k) {
  constexpr int64_t kLongest = 768, kStep = 64;
  return k <= kAmxSlab || (k <= kLongest && k % kStep == 0);
}

// What a product that goes by tiles reads down the columns of: a stored matrix of `rows` rows of
// `cols` floats, `row_stride` from one row to the next. Where that is a multiple of 1 KiB, rows
// share sets of the cache, and are spread first, with a line of the cache between them. Not when
// c [m, n] is small, nor when the matrix is so large that it is not worth the memory.
inline constexpr int64_t kSpreadSet = 256, kSpreadLine = 16;  // floats
constexpr int64_t SpreadBytes(int64_t rows, int64_t cols) {
  return kFloat * rows * (cols + kSpreadLine);
}
constexpr bool IsSpread(int64_t m, int64_t n, int64_t rows, int64_t cols, int64_t row_stride) {
  constexpr int64_t kLeast = 64, kLarge = 16 * kMiB;
  return m >= kLeast && n >= kLeast && row_stride % kSpreadSet == 0 &&
         SpreadBytes(rows, cols) <= kLarge;
}

}  // namespace trainyard::kernels::scratch
