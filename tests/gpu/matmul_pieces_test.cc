#include "kernels/cuda/matmul_pieces.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::kernels::cuda {
namespace {

TEST(MatmulPieces, AnOrdinaryProductIsOnePiece) {
  const auto pieces = CutMatmul({.m = 512, .n = 50'304, .k = 768}, kMaxMatmulElements);
  ASSERT_TRUE(pieces.ok());
  ASSERT_EQ(pieces->size(), 1u);
  EXPECT_EQ(pieces->front().m, 512);
  EXPECT_EQ(pieces->front().k, 768);
}

TEST(MatmulPieces, LogitsOfManyTokensAreCutByRows) {
  const auto pieces =
      CutMatmul({.m = 65'536, .n = 50'304, .k = 768, .transpose_b = true}, kMaxMatmulElements);
  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(pieces->size(), 2u);
}

// Every product a[m, k] * b[k, n] is in exactly one piece, and no operand is over the limit.
TEST(MatmulPieces, CoverTheProductOnceWithinTheLimit) {
  constexpr int64_t kLimit = 100;
  for (const int64_t m : {1, 7, 23}) {
    for (const int64_t n : {1, 5, 40}) {
      for (const int64_t k : {1, 9, 31}) {
        for (const bool ta : {false, true}) {
          const auto pieces = CutMatmul({.m = m, .n = n, .k = k, .transpose_a = ta}, kLimit);
          ASSERT_TRUE(pieces.ok()) << pieces.status();
          std::vector<int> covered(m * k, 0);
          for (const MatmulPiece& p : *pieces) {
            EXPECT_LE(p.m * n, kLimit);
            EXPECT_LE(p.k * n, kLimit);
            EXPECT_LE(ta ? p.k * m : p.m * k, kLimit);
            for (int64_t i = p.m0; i < p.m0 + p.m; ++i) {
              for (int64_t j = p.k0; j < p.k0 + p.k; ++j) ++covered[i * k + j];
            }
          }
          EXPECT_EQ(covered, std::vector<int>(m * k, 1)) << m << " " << n << " " << k;
        }
      }
    }
  }
}

TEST(MatmulPieces, ColumnsOfAWiderMatrixSpanItsRows) {
  EXPECT_EQ(CutMatmul({.a = {.row_stride = 20}, .m = 10, .n = 5, .k = 5}, 100)->size(), 2u);
  EXPECT_EQ(CutMatmul({.a = {.row_stride = 20}, .m = 5, .n = 5, .k = 10, .transpose_a = true}, 100)
                ->size(),
            2u);
  EXPECT_EQ(CutMatmul({.c = {.row_stride = 20}, .m = 10, .n = 5, .k = 5, .accumulate = true}, 100)
                ->size(),
            2u);
  EXPECT_EQ(CutMatmul({.c = {.row_stride = 20}, .m = 10, .n = 5, .k = 5}, 100)->size(), 2u);
}

// Both gradients, too: 65,536 rows of 50,304 elements are more than 2^31.
TEST(MatmulPieces, LogitsWhoseRowsLieApartAreCutByWholeRows) {
  const Matmul logits = {
      .c = {.row_stride = 50'304}, .m = 65'536, .n = 50'257, .k = 768, .transpose_b = true};
  const Matmul input = {.a = {.row_stride = 50'304}, .m = 65'536, .n = 768, .k = 50'257};
  const Matmul weight = {
      .a = {.row_stride = 50'304}, .m = 50'257, .n = 768, .k = 65'536, .transpose_a = true};
  for (const Matmul& op : {logits, input, weight}) {
    const auto pieces = CutMatmul(op, kMaxMatmulElements);
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    ASSERT_EQ(pieces->size(), 2u);
    for (const MatmulPiece& p : *pieces) {
      const int64_t rows = op.transpose_a ? p.k : p.m;
      EXPECT_LE(rows * 50'304, kMaxMatmulElements);
    }
  }
}

// A pack of 16 bytes is 8 elements of 16 bits. 50,257 columns are 6,282 of them and one more.
TEST(MatmulPieces, ColumnsThatFillNoPackGoByThemselves) {
  const Buffer apart = {.dtype = DType::kBF16, .row_stride = 50'304};
  const Matmul weight = {.a = apart, .m = 50'257, .n = 768, .k = 1024, .transpose_a = true};
  const auto cut = CutMatmul(weight, kMaxMatmulElements);
  ASSERT_TRUE(cut.ok()) << cut.status();
  ASSERT_EQ(cut->size(), 2u);
  EXPECT_EQ(cut->front().m, 50'256);
  EXPECT_EQ(cut->back().m0, 50'256);
  EXPECT_EQ(cut->back().m, 1);
  const auto pieces = [&](auto change) {
    Matmul op = weight;
    change(op);
    return CutMatmul(op, kMaxMatmulElements)->size();
  };
  EXPECT_EQ(pieces([](Matmul& op) { op.m = 50'256; }), 1u);
  EXPECT_EQ(pieces([](Matmul& op) { op.m = 257; }), 1u) << "too few for a second call";
  EXPECT_EQ(pieces([](Matmul& op) { op.a.row_stride = 50'257; }), 1u);
  EXPECT_EQ(pieces([](Matmul& op) { op.a.dtype = DType::kF32; }), 1u);
}

// The logits of GPT-2, and their gradient by the hidden states.
TEST(PaddedProduct, GrowsWhereTheRowsOfWhatMustGrowHaveRoom) {
  const auto grown = [](int64_t n, int64_t k, bool tb, int64_t a_stride, int64_t c_stride) {
    const ProductShape to = PaddedProduct(n, k, false, tb, a_stride, c_stride);
    return std::pair(to.n, to.k);
  };
  EXPECT_EQ(grown(50'257, 768, true, 0, 50'304), std::pair(int64_t{50'264}, int64_t{768}));
  EXPECT_EQ(grown(768, 50'257, false, 50'304, 0), std::pair(int64_t{768}, int64_t{50'264}));
  const std::pair<int64_t, int64_t> logits(50'257, 768);
  EXPECT_EQ(grown(50'257, 768, true, 0, 0), logits) << "dense";
  EXPECT_EQ(grown(50'257, 768, true, 0, 50'260), logits) << "no room";
  EXPECT_EQ(grown(50'257, 768, true, 0, 50'265), logits) << "rows that begin anywhere";
  EXPECT_EQ(grown(50'257, 767, true, 0, 50'304).first, 50'257) << "its other operands are slow";
  EXPECT_EQ(grown(50'256, 768, true, 0, 50'304).first, 50'256) << "nothing to do";
}

TEST(MatmulPieces, RefusesWhatCannotBeCut) {
  EXPECT_EQ(CutMatmul({.m = 1, .n = 11, .k = 10, .transpose_b = true}, 100).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(CutMatmul({.m = 1, .n = 101, .k = 1}, 100).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace trainyard::kernels::cuda
