// What llama adds: rotary positions and SwiGLU.

#include "tests/reference/llama.h"

#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class LlamaTest : public CpuTest {
 protected:
  static Rotary Op(const reference::RotaryShape& s, Buffer x, Buffer y, bool inverse) {
    return {.x = x,
            .y = y,
            .batch = s.batch,
            .time = s.time,
            .heads = s.heads,
            .rotated = s.rotated,
            .head_dim = s.head_dim,
            .theta = static_cast<float>(s.theta),
            .inverse = inverse};
  }
};

TEST_P(LlamaTest, RotaryAgreesWithReferenceBothWays) {
  for (const int64_t head_dim : {2, 6, 34, 64}) {
    const reference::RotaryShape s{
        .batch = 2, .time = 37, .heads = 5, .rotated = 3, .head_dim = head_dim, .theta = 500};
    const int64_t n = s.batch * s.time * s.heads * s.head_dim;
    const Vec x = RandomVec(n, 1);
    for (const bool inverse : {false, true}) {
      const Buffer apart = bench_.Floats(n), in_place = bench_.Floats(x);
      bench_.Run(Op(s, bench_.Floats(x), apart, inverse));
      bench_.Run(Op(s, in_place, in_place, inverse));
      const Vec expected = reference::Rotary(x, s, inverse);
      ExpectClose(apart, expected, 5e-7, "y");
      ExpectClose(in_place, expected, 5e-7, "y in place of x");
    }
  }
}

TEST_P(LlamaTest, RotaryKeepsItsDigitsFarAway) {
  const reference::RotaryShape s{.batch = 1, .time = 9000, .heads = 1, .rotated = 1, .head_dim = 4};
  const Vec x = RandomVec(s.time * s.head_dim, 1);
  const Buffer y = bench_.Floats(s.time * s.head_dim);
  bench_.Run(Op(s, bench_.Floats(x), y, false));
  ExpectClose(y, reference::Rotary(x, s, false), 5e-7, "y");
}

TEST_P(LlamaTest, HeadsThatCannotBePairedAreRefused) {
  const Buffer x = bench_.Floats(3);
  EXPECT_EQ(bench_.device().Prepare(Op({.head_dim = 3}, x, x, false)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bench_.device()
                .Prepare(Op({.heads = 1, .rotated = 2, .head_dim = 2}, x, x, false))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(LlamaTest, SwiGluAgreesWithReferenceBothWays) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {65, 96}, {40, 900}}) {
    const Vec x = RandomVec(2 * rows * cols, 1, 3), dy = RandomVec(rows * cols, 2);
    const Buffer y = bench_.Floats(rows * cols), dx = bench_.Floats(2 * rows * cols),
                 in_place = bench_.Floats(x);
    bench_.Run(SwiGluForward{bench_.Floats(x), y, rows, cols});
    bench_.Run(SwiGluBackward{bench_.Floats(x), bench_.Floats(dy), dx, rows, cols});
    bench_.Run(SwiGluBackward{in_place, bench_.Floats(dy), in_place, rows, cols});
    ExpectClose(y, reference::SwiGlu(x, rows, cols), 1e-6, "y");
    const Vec expected = reference::SwiGluBackward(x, dy, rows, cols);
    ExpectClose(dx, expected, 2e-6, "dx");
    ExpectClose(in_place, expected, 2e-6, "dx in place of x");
  }
}

TEST_P(LlamaTest, SwiGluOfLargeGatesStaysFinite) {
  const Buffer y = bench_.Floats(4);
  bench_.Run(SwiGluForward{bench_.Floats({-1000, -90, 90, 1000, 1, 1, 1, 1}), y, 1, 4});
  ExpectClose(y, {0, 0, 90, 1000}, 1e-6, "y");
}

TRAINYARD_CPU_SUITE(LlamaTest);

}  // namespace
}  // namespace trainyard::kernels
