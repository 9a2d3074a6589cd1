// Products by fp32 staged copies of 16-bit operands that are too large to be made at once. Operands
// are small multiples of 1/8: fp32 adds up their products exactly, in any order.

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/reference/element.h"
#include "tests/reference/linear.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

Vec Eighths(int64_t n, uint32_t seed) {
  Vec x(n);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t mixed = (static_cast<uint32_t>(i) + seed) * 2654435761u;
    x[i] = (static_cast<int>((mixed >> 20) % 17) - 8) / 8.0;
  }
  return x;
}

// The bytes of `x` as elements of `type`.
std::vector<char> BytesOf(DType type, const Vec& x) {
  const size_t size = SizeOf(type);
  std::vector<char> bytes(x.size() * size);
  char* to = bytes.data();
  for (const double value : x) {
    const float whole = static_cast<float>(value);
    const uint16_t half = type == DType::kF32 ? 0 : reference::ToBits(type, value);
    std::memcpy(to, type == DType::kF32 ? static_cast<const void*>(&whole) : &half, size);
    to += size;
  }
  return bytes;
}

// `x`, [rows, cols] of fp16, or its transpose, every number that a row of `step` elements holds
// beyond it a NaN.
Buffer Stored(Bench& bench, const std::vector<char>& x, int64_t rows, int64_t cols, bool transposed,
              int64_t step) {
  const Buffer stored = bench.Raw(DType::kF16, (transposed ? cols : rows) * step);
  uint16_t* to = static_cast<uint16_t*>(stored.data);
  const uint16_t* from = reinterpret_cast<const uint16_t*>(x.data());
  for (int64_t r = 0; r < rows; ++r) {
    if (transposed) {
      for (int64_t c = 0; c < cols; ++c) to[c * step + r] = from[r * cols + c];
    } else {
      std::memcpy(to + r * step, from + r * cols, cols * sizeof(uint16_t));
    }
  }
  return stored;
}

struct Shape {
  int64_t m, n, k;
};

class StagingTest : public testing::TestWithParam<Shape> {};

TEST_P(StagingTest, PiecesMakeTheWholeProduct) {
  const auto [m, n, k] = GetParam();
  Bench bench({CpuDevice::SupportedTables().front(), 2});
  const Vec a = Eighths(m * k, 1), b = Eighths(k * n, 2), biases = Eighths(n, 3);
  const std::vector<char> bytes_of_a = BytesOf(DType::kF16, a),
                          bytes_of_b = BytesOf(DType::kF16, b);
  Vec sums = reference::Matmul(a, b, m, n, k, false, false);
  for (int64_t i = 0; i < m * n; ++i) sums[i] += biases[i % n] + 0.5;
  for (const DType of_c : {DType::kF16, DType::kF32}) {
    const std::vector<char> expected = BytesOf(of_c, sums);
    const bool wide = of_c == DType::kF32;
    const int64_t row = n * SizeOf(of_c), step_of_c = n + (wide ? 0 : 2);
    const std::vector<char> before = BytesOf(of_c, Vec(step_of_c, 0.5));  // of each row
    for (int layout = 0; layout < 4; ++layout) {
      SCOPED_TRACE(testing::Message() << layout << (wide ? " to fp32" : " to fp16"));
      const bool ta = layout & 1, tb = layout & 2;
      const int64_t step_of_a = (ta ? m : k) + (wide ? 3 : 0);
      const Buffer c = bench.Raw(of_c, m * step_of_c);
      char* const rows = static_cast<char*>(c.data);
      for (int64_t i = 0; i < m; ++i) {
        std::memcpy(rows + i * before.size(), before.data(), before.size());
      }
      bench.Run(Matmul{.a = Stored(bench, bytes_of_a, m, k, ta, step_of_a).WithRowStride(step_of_a),
                       .b = Stored(bench, bytes_of_b, k, n, tb, tb ? k : n),
                       .bias = bench.Floats(biases),
                       .c = c.WithRowStride(step_of_c),
                       .m = m,
                       .n = n,
                       .k = k,
                       .transpose_a = ta,
                       .transpose_b = tb,
                       .accumulate = true});
      int64_t wrong = 0;
      for (int64_t i = 0; i < m; ++i) {
        const char* found = rows + i * before.size();
        wrong += std::memcmp(found, expected.data() + i * row, row) != 0 ||
                 std::memcmp(found + row, before.data() + row, before.size() - row) != 0;
      }
      EXPECT_EQ(wrong, 0) << "rows of " << m;
    }
  }
}

// Rows of c in pieces, columns of c in pieces, and, with a c that is larger than both operands,
// rows.
INSTANTIATE_TEST_SUITE_P(Shapes, StagingTest,
                         testing::Values(Shape{4200, 5, 4100}, Shape{5, 4200, 4100},
                                         Shape{4200, 4100, 7}));

}  // namespace
}  // namespace trainyard::kernels
