#include "tests/reference/soft_cap.h"
#include "tests/reference/element.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

constexpr int64_t kLengths[] = {1, 3, 17, 65, 20'001};
constexpr float kSoftCap = 30;

class SoftCapTest : public CpuTest {};

Vec Capped(const Vec& x, double cap) {
  Vec y = x;
  for (double& v : y) v = reference::SoftCap(v, cap);
  return y;
}

TEST_P(SoftCapTest, AgreesWithReferenceAlsoInPlace) {
  for (const int64_t n : kLengths) {
    const Vec x = RandomVec(n, 1, 40);
    const Buffer y = bench_.Floats(n), in_place = bench_.Floats(x);
    bench_.Run(SoftCapForward{bench_.Floats(x), y, n, kSoftCap});
    bench_.Run(SoftCapForward{in_place, in_place, n, kSoftCap});
    ExpectClose(y, Capped(x, kSoftCap), 1e-6, "y");
    ExpectClose(in_place, Capped(x, kSoftCap), 1e-6, "y in place");
  }
}

// Each value on its own: small ones, whose digits cancel in 1 - exp(-2 x), and those near the seam.
TEST_P(SoftCapTest, KeepsTheDigitsOfEveryValue) {
  Vec x;
  for (double v = 1e-20; v < 1e3; v *= 1.07) x.insert(x.end(), {v, -v});
  const auto n = static_cast<int64_t>(x.size());
  const Buffer y = bench_.Floats(n);
  bench_.Run(SoftCapForward{bench_.Floats(x), y, n, 1});
  for (int64_t i = 0; i < n; ++i) {
    const double of = static_cast<float>(x[i]), expected = reference::SoftCap(of, 1);
    EXPECT_NEAR(y.As<float>()[i], expected, 4e-7 * std::fabs(expected)) << of;
  }
}

TEST_P(SoftCapTest, GradientAgreesWithReferenceAlsoInPlace) {
  for (const int64_t n : kLengths) {
    const Vec x = RandomVec(n, 1, 40), dy = RandomVec(n, 2);
    Vec dx = dy;
    for (int64_t i = 0; i < n; ++i) dx[i] *= reference::SoftCapSlope(x[i], kSoftCap);
    const Buffer y = bench_.Floats(Capped(x, kSoftCap)), apart = bench_.Floats(n),
                 in_place = bench_.Floats(dy);
    bench_.Run(SoftCapBackward{y, bench_.Floats(dy), apart, n, kSoftCap});
    bench_.Run(SoftCapBackward{y, in_place, in_place, n, kSoftCap});
    ExpectClose(apart, dx, 2e-6, "dx");
    ExpectClose(in_place, dx, 2e-6, "dx in place of dy");
  }
}

TEST_P(SoftCapTest, SlopeOfTheReferenceAgreesWithDifferences) {
  constexpr double kStep = 1e-5;
  for (const double x : {-70.0, -3.0, 0.0, 0.1, 29.0, 120.0}) {
    const double up = reference::SoftCap(x + kStep, kSoftCap),
                 down = reference::SoftCap(x - kStep, kSoftCap);
    EXPECT_NEAR(reference::SoftCapSlope(x, kSoftCap), (up - down) / (2 * kStep), 1e-8) << x;
  }
}

TEST_P(SoftCapTest, ElementsOfSixteenBitsAreRoundedOnce) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const Vec x = RandomVec(257, 3, 40);
    const Buffer in = bench_.Raw(type, 257), y = bench_.Raw(type, 257);
    for (int i = 0; i < 257; ++i) {
      static_cast<uint16_t*>(in.data)[i] = reference::ToBits(type, x[i]);
    }
    bench_.Run(SoftCapForward{in, y, 257, kSoftCap});
    for (int i = 0; i < 257; ++i) {
      const double of = reference::Rounded(type, x[i]), expected = reference::SoftCap(of, kSoftCap);
      const double found = reference::ToDouble(type, static_cast<uint16_t*>(y.data)[i]);
      EXPECT_NEAR(found, expected, 1.01 * reference::UnitRoundoff(type) * std::fabs(expected))
          << of;
    }
  }
}

TEST_P(SoftCapTest, InfinityIsCappedAndNotANumberPasses) {
  const Buffer y = bench_.Floats(4);
  bench_.Run(SoftCapForward{bench_.Floats({INFINITY, -INFINITY, NAN, 0}), y, 4, kSoftCap});
  EXPECT_EQ(y.As<float>()[0], kSoftCap);
  EXPECT_EQ(y.As<float>()[1], -kSoftCap);
  EXPECT_TRUE(std::isnan(y.As<float>()[2]));
  EXPECT_EQ(y.As<float>()[3], 0);
}

TEST_P(SoftCapTest, ACapThatIsNoPositiveNumberIsRefused) {
  const Buffer x = bench_.Floats(4);
  for (const float cap : {0.0f, -1.0f, INFINITY, NAN}) {
    EXPECT_EQ(bench_.device().Prepare(SoftCapForward{x, x, 4, cap}).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(bench_.device().Prepare(SoftCapBackward{x, x, x, 4, cap}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TRAINYARD_CPU_SUITE(SoftCapTest);

}  // namespace
}  // namespace trainyard::kernels
