#include <gmock/gmock.h>

#include <cmath>

#include "kernels/normal.h"
#include "kernels/random.h"
#include "tests/reference/elementwise.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class DrawNormalTest : public CpuTest {
 protected:
  std::vector<float> Draw(DrawNormal op) {
    op.x = bench_.Floats(op.n);
    bench_.Run(op);
    return std::vector<float>(op.x.As<float>(), op.x.As<float>() + op.n);
  }
};

constexpr uint64_t kSeed = 0x123456789abcdef, kStream = 0xfedcba9876543210;

TEST_P(DrawNormalTest, AgreesWithReference) {
  for (const int64_t n : {1, 2, 127, 128, 129, 30'001}) {
    const Buffer x = bench_.Floats(n);
    bench_.Run(DrawNormal{.x = x, .seed = kSeed, .stream = kStream, .n = n, .std = 0.02});
    ExpectClose(x, reference::Normal(kSeed, kStream, n, 0.02), 1e-7, "x");
  }
}

// One number at a time, as the header says it: what vectors of any width and a GPU give, to the
// bit.
TEST_P(DrawNormalTest, HasTheBitsOfItsFormula) {
  constexpr int64_t kN = 50'000;
  const std::vector<float> x = Draw({.seed = kSeed, .stream = kStream, .n = kN, .std = 0.3});
  for (int64_t pair = 0; 2 * pair < kN; ++pair) {
    const Random4 r = Philox4x32(kSeed, static_cast<uint32_t>(pair), 0,
                                 static_cast<uint32_t>(kStream), kStream >> 32);
    const auto made = NormalPairOf<double, uint64_t>(uint64_t{r.v[0]} << 32 | r.v[1],
                                                     uint64_t{r.v[2]} << 32 | r.v[3]);
    const double radius = 0.3 * std::sqrt(made.square);
    ASSERT_EQ(x[2 * pair], static_cast<float>(radius * made.cosine)) << pair;
    ASSERT_EQ(x[2 * pair + 1], static_cast<float>(radius * made.sine)) << pair;
  }
}

// A job that is submitted again next year begins with these.
TEST_P(DrawNormalTest, HasTheBitsItAlwaysHad) {
  EXPECT_THAT(Draw({.seed = 1337, .stream = uint64_t{1} << 63, .n = 6, .std = 0.02}),
              testing::ElementsAre(0x1.66d6aep-6f, -0x1.30bc18p-9f, 0x1.08ed36p-9f, -0x1.265944p-8f,
                                   0x1.74181ep-6f, 0x1.5ccc5ap-10f));
}

TEST_P(DrawNormalTest, IsAFunctionOfSeedStreamAndPlaceAlone) {
  // Over a place whose pair does not fit into 32 bits.
  constexpr int64_t kFirst = (int64_t{1} << 33) - 301, kN = 700;
  const DrawNormal whole = {.seed = 1, .stream = 2, .first = kFirst, .n = kN};
  const std::vector<float> x = Draw(whole);
  for (const auto& [begin, n] : {std::pair{0, 7}, {7, 301}, {308, 392}, {299, 1}, {300, 1}}) {
    const std::vector<float> part = Draw({.seed = 1, .stream = 2, .first = kFirst + begin, .n = n});
    EXPECT_EQ(part, std::vector<float>(x.begin() + begin, x.begin() + begin + n)) << begin;
  }
  EXPECT_NE(Draw({.seed = 3, .stream = 2, .first = kFirst, .n = kN}), x);
  EXPECT_NE(Draw({.seed = 1, .stream = 4, .first = kFirst, .n = kN}), x);
  EXPECT_NE(Draw({.seed = 1, .stream = 2, .n = kN}), x);
}

TEST_P(DrawNormalTest, HasTheMomentsOfANormal) {
  constexpr int64_t kN = 200'000;
  double sum = 0, squares = 0, fourths = 0;
  for (const float v : Draw({.seed = 7, .stream = 8, .n = kN, .std = 0.02})) {
    sum += v;
    squares += std::pow(v / 0.02, 2);
    fourths += std::pow(v / 0.02, 4);
  }
  EXPECT_NEAR(sum / kN, 0, 4 * 0.02 / std::sqrt(kN));
  EXPECT_NEAR(squares / kN, 1, 0.02);
  EXPECT_NEAR(fourths / kN, 3, 0.1);
}

// At the ends of what 53 bits can be, and where the series change over.
TEST(NormalPair, StaysCloseToTheFunctionsOfTheLibraryEverywhere) {
  std::vector<uint64_t> draws = {0, 1, 1 << 11, ~uint64_t{0}, uint64_t{1} << 63};
  for (int bit = 0; bit < 64; ++bit) {
    for (const uint64_t off : {0, 1, 2}) draws.push_back((uint64_t{1} << bit) - 1 + off);
    draws.push_back(~uint64_t{0} >> bit << 11);
    draws.push_back(0xb504f333f9de6484u >> bit);  // sqrt(1/2)
  }
  for (uint64_t i = 0; i < 200'000; ++i) draws.push_back(i * 0x9e3779b97f4a7c15u);
  for (const uint64_t draw : draws) {
    const auto made = NormalPairOf<double, uint64_t>(draw, draw);
    const double rounded = (static_cast<double>(draw >> 11) + 0.5) * 0x1p-53;
    const long double u = rounded;
    const double log = static_cast<double>(-2 * std::log(u));
    ASSERT_NEAR(made.square, log, 4e-16 * log) << draw;
    ASSERT_GE(made.square, 0) << draw;
    const long double angle = 2 * 3.14159265358979323846L * u;
    ASSERT_NEAR(made.cosine, static_cast<double>(std::cos(angle)), 4e-16) << draw;
    ASSERT_NEAR(made.sine, static_cast<double>(std::sin(angle)), 4e-16) << draw;
  }
}

TRAINYARD_CPU_SUITE(DrawNormalTest);

}  // namespace
}  // namespace trainyard::kernels
