#include "kernels/cuda/matmul_pieces.h"

#include <vector>

#include "gtest/gtest.h"

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

TEST(MatmulPieces, RefusesWhatCannotBeCut) {
  EXPECT_EQ(CutMatmul({.m = 1, .n = 11, .k = 10, .transpose_b = true}, 100).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(CutMatmul({.m = 1, .n = 101, .k = 1}, 100).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace trainyard::kernels::cuda
