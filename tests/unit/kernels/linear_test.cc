#include "tests/reference/linear.h"

#include "tests/reference/element.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class LinearTest : public CpuTest {};

struct MatrixShape {
  int64_t m, n, k;
};

TEST_P(LinearTest, MatmulAgreesWithReferenceInEveryLayout) {
  for (const auto& [m, n, k] :
       {MatrixShape{1, 1, 1}, MatrixShape{3, 17, 65}, MatrixShape{65, 3, 17},
        MatrixShape{17, 65, 3}, MatrixShape{96, 64, 128}, MatrixShape{130, 65, 33},
        MatrixShape{64, 1024, 9}}) {
    for (int layout = 0; layout < 16; ++layout) {
      const bool ta = layout & 1, tb = layout & 2, accumulate = layout & 4, bias = layout & 8;
      const Vec a = RandomVec(m * k, 1), b = RandomVec(k * n, 2), before = RandomVec(m * n, 3),
                biases = RandomVec(n, 4);
      Vec expected = reference::Matmul(a, b, m, n, k, ta, tb);
      for (int64_t i = 0; i < m * n; ++i) {
        expected[i] += (bias ? biases[i % n] : 0) + (accumulate ? before[i] : 0);
      }
      const Buffer c = accumulate ? bench_.Floats(before) : bench_.Floats(m * n);
      bench_.Run(Matmul{.a = bench_.Floats(a),
                        .b = bench_.Floats(b),
                        .bias = bias ? bench_.Floats(biases) : Buffer(),
                        .c = c,
                        .m = m,
                        .n = n,
                        .k = k,
                        .transpose_a = ta,
                        .transpose_b = tb,
                        .accumulate = accumulate});
      ExpectClose(c, expected, 5e-6,
                  "m " + std::to_string(m) + " layout " + std::to_string(layout));
    }
  }
}

TEST_P(LinearTest, MatmulAgreesWithReferenceForTheShapesOfACharacterGpt) {
  for (const auto& [m, n, k] :
       {MatrixShape{768, 65, 128}, MatrixShape{768, 128, 512}, MatrixShape{128, 65, 768}}) {
    const Vec a = RandomVec(m * k, 1), b = RandomVec(k * n, 2);
    const Buffer c = bench_.Floats(m * n);
    bench_.Run(Matmul{.a = bench_.Floats(a),
                      .b = bench_.Floats(b),
                      .c = c,
                      .m = m,
                      .n = n,
                      .k = k,
                      .transpose_b = true});
    ExpectClose(c, reference::Matmul(a, b, m, n, k, false, true), 5e-6, "c");
  }
}

// Columns [first, first + width) of a matrix whose rows are `cols` wide.
Vec Columns(const Vec& x, int64_t cols, int64_t first, int64_t width) {
  Vec columns;
  for (size_t row = 0; row < x.size() / cols; ++row) {
    const auto begin = x.begin() + row * cols + first;
    columns.insert(columns.end(), begin, begin + width);
  }
  return columns;
}

// With buffers that end where the last column does.
TEST_P(LinearTest, MatmulOfColumnsOfAWiderMatrixIsScaledAndTouchesNoOtherColumn) {
  constexpr int64_t kFirst = 3, kMore = 5;  // columns before and after
  constexpr float kScale = 0.375f;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [m, n, k] :
         {MatrixShape{1, 1, 1}, MatrixShape{17, 65, 4}, MatrixShape{66, 8, 33}}) {
      for (const bool ta : {false, true}) {
        const int64_t width = kFirst + (ta ? m : k), c_width = kFirst + n + kMore;
        const Vec a = RandomVec((ta ? k : m) * width, 1), b = RandomVec(n * k, 2),
                  before = RandomVec(m * c_width, 3);
        const Buffer a_wide = bench_.Elements(type, a), b_all = bench_.Elements(type, b),
                     c = bench_.Elements(type, before), dense = bench_.Floats(m * n);
        const Vec product =
            reference::Matmul(Columns(Bench::Read(a_wide, a.size()), width, kFirst, width - kFirst),
                              Bench::Read(b_all, b.size()), m, n, k, ta, true);
        Vec expected = Bench::Read(c, before.size()), scaled;
        for (int64_t i = 0; i < m * n; ++i) {
          scaled.push_back(kScale * product[i]);
          expected[i / n * c_width + kFirst + i % n] += scaled.back();
        }
        const std::string what = "type " + std::to_string(static_cast<int>(type)) + ", m " +
                                 std::to_string(m) + (ta ? ", transposed" : "");
        Matmul op{.a = a_wide.From(kFirst).WithRowStride(width),
                  .b = b_all,
                  .c = c.From(kFirst).WithRowStride(c_width),
                  .m = m,
                  .n = n,
                  .k = k,
                  .transpose_a = ta,
                  .transpose_b = true,
                  .accumulate = true,
                  .scale = kScale};
        bench_.Run(op);
        ExpectClose(c, expected, 5e-6, what);
        op.c = dense;
        op.accumulate = false;
        bench_.Run(op);
        ExpectClose(dense, scaled, 5e-6, what + ", to floats");
      }
    }
  }
}

// Elements of `dense` [rows, cols] in rows `step` apart, `between` behind each.
Vec Apart(const Vec& dense, int64_t cols, int64_t step, double between) {
  const auto rows = static_cast<int64_t>(dense.size()) / cols;
  Vec apart(rows * step, between);
  for (int64_t i = 0; i < rows * cols; ++i) apart[i / cols * step + i % cols] = dense[i];
  return apart;
}

// What the products of logits are: the logits with their bias, in the operands' type and in fp32,
// and both gradients. Nothing between rows is read (it is no number) or written. Where they are
// padded, anything may be written there, but what was there still changes nothing.
TEST_P(LinearTest, RowsThatLieApartGiveTheBitsOfDenseOnes) {
  constexpr double kBetween = 7;
  // On a GPU the library may add in another order, and round once more before it adds a bias.
  const std::string device = bench_.device().Description();
  const bool same_order = device.starts_with("cpu") || device.find("emulated") != device.npos;
  const auto expect_equal = [&](const Buffer& actual, const Vec& expected,
                                const std::string& what) {
    const bool narrow = actual.dtype != DType::kF32;
    const double tolerance = narrow ? 2 * reference::UnitRoundoff(actual.dtype) : 5e-6;
    ExpectClose(actual, expected, same_order ? 0 : tolerance, what);
    if (same_order) {
      EXPECT_EQ(Bench::Read(actual, expected.size()), expected) << what;
    }
  };
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [m, n, k] :
         {MatrixShape{1, 62, 8}, MatrixShape{17, 61, 24}, MatrixShape{70, 190, 33}}) {
      const int64_t step = (n + 63) / 64 * 64;
      const std::string what =
          "type " + std::to_string(static_cast<int>(type)) + ", m " + std::to_string(m);
      const Buffer x = bench_.Elements(type, RandomVec(m * k, 1)),
                   w = bench_.Elements(type, RandomVec(n * k, 2)),
                   bias = bench_.Floats(RandomVec(n, 3));
      for (const DType of_c : {type, DType::kF32}) {
        for (const bool accumulate : {false, true}) {
          const Vec before = RandomVec(m * n, 4);
          const Buffer dense = bench_.Elements(of_c, before),
                       apart = bench_.Elements(of_c, Apart(before, n, step, kBetween));
          Matmul op{.a = x,
                    .b = w,
                    .bias = accumulate ? Buffer() : bias,
                    .c = dense,
                    .m = m,
                    .n = n,
                    .k = k,
                    .transpose_b = true,
                    .accumulate = accumulate};
          bench_.Run(op);
          op.c = apart.WithRowStride(step);
          bench_.Run(op);
          expect_equal(apart, Apart(Bench::Read(dense, m * n), n, step, kBetween), what);
          if (accumulate) continue;
          op.c = apart.WithPaddedRows(step);
          bench_.Run(op);
          expect_equal(bench_.Elements(of_c, Columns(Bench::Read(apart, m * step), step, 0, n)),
                       Bench::Read(dense, m * n), what + ", padded");
        }
      }
      const Vec dlogits = RandomVec(m * n, 5);
      const Buffer dense = bench_.Elements(type, dlogits),
                   apart = bench_.Elements(type, Apart(dlogits, n, step, NAN));
      const auto gradient = [&](Matmul op, int64_t size) {
        const Buffer c = op.c = bench_.Raw(type, size), again = bench_.Raw(type, size);
        op.a = dense;
        bench_.Run(op);
        for (const Buffer& a : {apart.WithRowStride(step), apart.WithPaddedRows(step)}) {
          op.a = a;
          op.c = again;
          bench_.Run(op);
          expect_equal(again, Bench::Read(c, size), what + (a.padded ? ", padded" : ""));
        }
      };
      gradient({.b = w, .m = m, .n = k, .k = n}, m * k);
      gradient({.b = x, .m = n, .n = k, .k = m, .transpose_a = true}, n * k);
    }
  }
}

TEST_P(LinearTest, MatmulRefusesStridesAndScalesThatAreNone) {
  const Buffer x = bench_.Floats(64);
  const auto refused = [&](Matmul op) {
    op.a = x.WithRowStride(op.a.row_stride);
    op.b = x;
    op.c = x.WithRowStride(op.c.row_stride);
    op.m = op.n = op.k = 4;
    return !bench_.device().Prepare(op).ok();
  };
  EXPECT_FALSE(refused({}));
  EXPECT_TRUE(refused({.a = {.row_stride = 3}}));
  EXPECT_TRUE(refused({.c = {.row_stride = 3}, .accumulate = true}));
  EXPECT_TRUE(refused({.c = {.row_stride = 3}}));
  EXPECT_FALSE(refused({.c = {.row_stride = 5}}));
  EXPECT_TRUE(refused({.bias = x, .scale = 2}));
}

TEST_P(LinearTest, AddProductAddsToSomeColumnsInPlaceAndElsewhere) {
  constexpr int64_t kRows = 37, kCols = 70, kFirst = 20, kN = 33, kK = 4;
  constexpr float kScale = 1.75f;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Buffer a = bench_.Elements(type, RandomVec(kRows * kK, 1)),
                 b = bench_.Elements(type, RandomVec(kN * kK, 2)),
                 base = bench_.Elements(type, RandomVec(kRows * kCols, 3)),
                 y = bench_.Raw(type, kRows * kCols);
    const Vec before = Bench::Read(base, kRows * kCols);
    Vec expected = before;
    const Vec product = reference::Matmul(Bench::Read(a, kRows * kK), Bench::Read(b, kN * kK),
                                          kRows, kN, kK, false, true);
    for (int64_t i = 0; i < kRows * kN; ++i) {
      expected[i / kN * kCols + kFirst + i % kN] += kScale * product[i];
    }
    AddProduct op{.base = base,
                  .a = a,
                  .b = b,
                  .y = y,
                  .rows = kRows,
                  .cols = kCols,
                  .first = kFirst,
                  .n = kN,
                  .k = kK,
                  .scale = kScale};
    bench_.Run(op);
    ExpectClose(y, expected, 5e-6, "y");
    EXPECT_EQ(Bench::Read(base, kRows * kCols), before);
    op.y = base;
    bench_.Run(op);
    EXPECT_EQ(Bench::Read(base, kRows * kCols), Bench::Read(y, kRows * kCols));
  }
  const Buffer x = bench_.Floats(16);
  EXPECT_FALSE(
      bench_.device()
          .Prepare(AddProduct{
              .base = x, .a = x, .b = x, .y = x, .rows = 2, .cols = 4, .first = 2, .n = 3, .k = 2})
          .ok());
}

TEST_P(LinearTest, ColumnSumAgreesWithReference) {
  for (const int64_t rows : {1, 3, 17, 65, 768, 5000}) {
    for (const int64_t cols : {1, 3, 17, 65, 130}) {
      for (const bool accumulate : {false, true}) {
        const Vec x = RandomVec(rows * cols, 1), before = RandomVec(cols, 2);
        const Buffer y = accumulate ? bench_.Floats(before) : bench_.Floats(cols);
        bench_.Run(ColumnSum{bench_.Floats(x), y, rows, cols, accumulate});
        const Vec sums = reference::ColumnSum(x, rows, cols);
        ExpectClose(y, accumulate ? Plus(sums, before) : sums, 3e-6, "y");
      }
    }
  }
}

TEST_P(LinearTest, ColumnSumOfRowsThatLieApartGivesTheBitsOfDenseOnes) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t rows : {1, 65, 5000}) {
      constexpr int64_t kCols = 61, kStep = 64;
      const Vec x = RandomVec(rows * kCols, 1);
      const Buffer dense = bench_.Floats(kCols), apart = bench_.Floats(kCols);
      ColumnSum op{.x = bench_.Elements(type, x), .y = dense, .rows = rows, .cols = kCols};
      bench_.Run(op);
      op.x = bench_.Elements(type, Apart(x, kCols, kStep, NAN));
      op.y = apart;
      op.x.row_stride = kStep;
      bench_.Run(op);
      EXPECT_EQ(Bench::Read(apart, kCols), Bench::Read(dense, kCols)) << rows;
      op.x.row_stride = kCols - 1;
      EXPECT_FALSE(bench_.device().Prepare(op).ok());
    }
  }
}

TEST_P(LinearTest, EmbeddingAgreesWithReference) {
  for (const int64_t width : {1, 17, 128}) {
    for (const bool positioned : {true, false}) {
      constexpr int64_t kBatch = 3, kTime = 65, kVocab = 11;
      const std::vector<int32_t> ids = RandomIds(kBatch * kTime, kVocab, 1);
      const Vec tokens = RandomVec(kVocab * width, 2);
      // More positions than time steps: only the first are read.
      const Vec positions = positioned ? RandomVec((kTime + 5) * width, 3) : Vec();
      const Buffer y = bench_.Floats(kBatch * kTime * width);
      bench_.Run(EmbeddingForward{.ids = bench_.Ints(ids),
                                  .tokens = bench_.Floats(tokens),
                                  .positions = positioned ? bench_.Floats(positions) : Buffer(),
                                  .y = y,
                                  .batch = kBatch,
                                  .time = kTime,
                                  .width = width,
                                  .vocab = kVocab});
      ExpectClose(y, reference::Embedding(ids, tokens, positions, kBatch, kTime, width), 1e-7, "y");
    }
  }
}

TEST_P(LinearTest, EmbeddingGradientIsAddedToWhatIsThere) {
  for (const int64_t width : {1, 17, 128}) {
    for (const bool positioned : {true, false}) {
      constexpr int64_t kBatch = 3, kTime = 65, kVocab = 11;
      const std::vector<int32_t> ids = RandomIds(kBatch * kTime, kVocab, 1);
      const Vec dy = RandomVec(kBatch * kTime * width, 2);
      const Vec tokens = RandomVec(kVocab * width, 3), positions = RandomVec(kTime * width, 4);
      const Buffer dtokens = bench_.Floats(tokens), dpositions = bench_.Floats(positions);
      bench_.Run(EmbeddingBackward{.dy = bench_.Floats(dy),
                                   .ids = bench_.Ints(ids),
                                   .dtokens = dtokens,
                                   .dpositions = positioned ? dpositions : Buffer(),
                                   .batch = kBatch,
                                   .time = kTime,
                                   .width = width,
                                   .vocab = kVocab});
      const auto g = reference::EmbeddingBackward(ids, dy, kBatch, kTime, width, kVocab);
      ExpectClose(dtokens, Plus(g.dtokens, tokens), 2e-6, "dtokens");
      ExpectClose(dpositions, positioned ? Plus(g.dpositions, positions) : positions, 2e-6,
                  "dpositions");
    }
  }
}

TEST_P(LinearTest, AnIdOutsideTheVocabularyAborts) {
  if (GetParam().threads > 1) GTEST_SKIP() << "a child of fork has no threads of the pool";
  const EmbeddingForward op{.ids = bench_.Ints({0, 11}),
                            .tokens = bench_.Floats(11 * 3),
                            .y = bench_.Floats(2 * 3),
                            .batch = 1,
                            .time = 2,
                            .width = 3,
                            .vocab = 11};
  EXPECT_DEATH(bench_.Run(op), "id 11 at place 1; the vocabulary has 11");
}

TRAINYARD_CPU_SUITE(LinearTest);

}  // namespace
}  // namespace trainyard::kernels
