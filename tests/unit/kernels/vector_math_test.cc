// Elementary functions against the C library in double precision, in units of the last place.

#include <functional>

#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class VectorMathTest : public testing::TestWithParam<CpuCase> {
 protected:
  // The largest error over [first, last] in steps of `step`.
  static double LargestUlp(void (*function)(const float*, float*, int64_t),
                           const std::function<double(double)>& exact, double first, double last,
                           double step) {
    std::vector<float> x, y;
    for (double at = first; at <= last; at += step) x.push_back(static_cast<float>(at));
    y.resize(x.size());
    function(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = exact(x[i]);
      const float rounded = std::fabs(static_cast<float>(expected));
      const double ulp = std::nextafter(rounded, INFINITY) - rounded;
      largest = std::fmax(largest, std::fabs(y[i] - expected) / ulp);
    }
    return largest;
  }
};

TEST_P(VectorMathTest, ExpIsAccurate) {
  EXPECT_LE(LargestUlp(
                GetParam().table->exp, [](double x) { return std::exp(x); }, -87.3, 88.7, 1.1e-3),
            2);
}

TEST_P(VectorMathTest, ExpKeepsItsEdges) {
  const float x[] = {0, -88, -1000, -INFINITY, 89, 1000, INFINITY, NAN, -0.0f};
  float y[9];
  GetParam().table->exp(x, y, 9);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 0);
  EXPECT_EQ(y[4], INFINITY);
  EXPECT_EQ(y[5], INFINITY);
  EXPECT_EQ(y[6], INFINITY);
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_EQ(y[8], 1);
}

TEST_P(VectorMathTest, LogIsAccurate) {
  const auto log = [](double x) { return std::log(x); };
  EXPECT_LE(LargestUlp(GetParam().table->log, log, 1, 10, 1e-4), 3);
  EXPECT_LE(LargestUlp(GetParam().table->log, log, 10, 1e5, 0.1), 3);
}

TEST_P(VectorMathTest, NormalDistributionKeepsDigitsInItsTail) {
  const auto phi = [](double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); };
  EXPECT_LE(LargestUlp(GetParam().table->phi, phi, 0, 8, 1e-4), 5);
  EXPECT_LE(LargestUlp(GetParam().table->phi, phi, -5, 0, 1e-4), 20);
  // x^2 / 2 is rounded before it becomes an exponent.
  EXPECT_LE(LargestUlp(GetParam().table->phi, phi, -12.9, -5, 1e-4), 80);
}

TRAINYARD_CPU_SUITE(VectorMathTest);

}  // namespace
}  // namespace trainyard::kernels
