// Products by fp32 staged copies of 16-bit operands that are too large to be made at once. Operands
// are small multiples of 1/8: fp32 adds up their products exactly, in any order.

#include <cstdint>
#include <vector>

#include "tests/reference/element.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

float Eighths(uint32_t i, uint32_t seed) {
  const uint32_t mixed = (i + seed) * 2654435761u;
  return static_cast<float>(static_cast<int>((mixed >> 20) % 17) - 8) / 8;
}

// [rows, cols] of fp16, or its transpose, every number that a row of `step` elements holds beyond
// it a NaN.
Buffer Stored(Bench& bench, int64_t rows, int64_t cols, bool transposed, int64_t step,
              uint32_t seed) {
  const Buffer x = bench.Raw(DType::kF16, (transposed ? cols : rows) * step);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      static_cast<uint16_t*>(x.data)[transposed ? c * step + r : r * step + c] =
          reference::ToBits(DType::kF16, Eighths(static_cast<uint32_t>(r * cols + c), seed));
    }
  }
  return x;
}

struct Shape {
  int64_t m, n, k;
};

class StagingTest : public testing::TestWithParam<Shape> {};

TEST_P(StagingTest, PiecesMakeTheWholeProduct) {
  const auto [m, n, k] = GetParam();
  Bench bench({CpuDevice::SupportedTables().front(), 2});
  std::vector<float> sums(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += Eighths(static_cast<uint32_t>(i * k + l), 1) *
               Eighths(static_cast<uint32_t>(l * n + j), 2);
      }
      sums[i * n + j] = sum;
    }
  }
  for (int layout = 0; layout < 8; ++layout) {
    SCOPED_TRACE(layout);
    const bool ta = layout & 1, tb = layout & 2, wide = layout & 4;
    const DType of_c = wide ? DType::kF32 : DType::kF16;
    const int64_t step_of_a = (ta ? m : k) + (wide ? 3 : 0), step_of_c = n + (wide ? 0 : 2);
    const Vec before(m * step_of_c, 0.5);
    Vec biases(n);
    for (int64_t j = 0; j < n; ++j) biases[j] = Eighths(static_cast<uint32_t>(j), 3);
    const Buffer c = bench.Elements(of_c, before);
    bench.Run(Matmul{.a = Stored(bench, m, k, ta, step_of_a, 1).WithRowStride(step_of_a),
                     .b = Stored(bench, k, n, tb, tb ? k : n, 2),
                     .bias = bench.Floats(biases),
                     .c = c.WithRowStride(step_of_c),
                     .m = m,
                     .n = n,
                     .k = k,
                     .transpose_a = ta,
                     .transpose_b = tb,
                     .accumulate = true});
    const Vec found = Bench::Read(c, m * step_of_c);
    int64_t wrong = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < step_of_c; ++j) {
        const double expected = j < n ? reference::Rounded(of_c, sums[i * n + j] + biases[j] + 0.5)
                                      : before[i * step_of_c + j];
        wrong += found[i * step_of_c + j] != expected;
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

// Rows of c in pieces, columns of c in pieces, and, with a c that is larger than both operands,
// rows.
INSTANTIATE_TEST_SUITE_P(Shapes, StagingTest,
                         testing::Values(Shape{4200, 5, 4100}, Shape{5, 4200, 4100},
                                         Shape{4200, 4100, 7}));

}  // namespace
}  // namespace trainyard::kernels
