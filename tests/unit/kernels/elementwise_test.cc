#include "tests/reference/elementwise.h"
#include "kernels/step_state.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

constexpr int64_t kSizes[] = {1, 3, 17, 65, 20'001};
constexpr ActivationKind kKinds[] = {ActivationKind::kRelu, ActivationKind::kGelu,
                                     ActivationKind::kGeluTanh};

class ElementwiseTest : public CpuTest {};

TEST_P(ElementwiseTest, ActivationAgreesWithReference) {
  for (const ActivationKind kind : kKinds) {
    for (const int64_t n : kSizes) {
      const Vec x = RandomVec(n, 1, 2);
      Vec y(n);
      for (int64_t i = 0; i < n; ++i) y[i] = reference::Activation(kind, x[i]);
      const Buffer out = bench_.Floats(n);
      bench_.Run(ActivationForward{kind, bench_.Floats(x), out, n});
      ExpectClose(out, y, 1e-6, "y");
    }
  }
}

TEST_P(ElementwiseTest, ActivationGradientAgreesWithReference) {
  for (const ActivationKind kind : kKinds) {
    for (const int64_t n : kSizes) {
      const Vec x = RandomVec(n, 1, 2), dy = RandomVec(n, 2);
      Vec dx(n);
      for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * reference::ActivationSlope(kind, x[i]);
      const Buffer apart = bench_.Floats(n), in_place = bench_.Floats(dy);
      bench_.Run(ActivationBackward{kind, bench_.Floats(x), bench_.Floats(dy), apart, n});
      bench_.Run(ActivationBackward{kind, bench_.Floats(x), in_place, in_place, n});
      ExpectClose(apart, dx, 2e-6, "dx");
      ExpectClose(in_place, dx, 2e-6, "dx in place of dy");
    }
  }
}

TEST_P(ElementwiseTest, GeluKeepsItsTails) {
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kGeluTanh}) {
    const Vec x = {-30, -12, -5, -3, 0, 3, 5, 12, 30, 100};
    const Buffer y = bench_.Floats(10);
    bench_.Run(ActivationForward{kind, bench_.Floats(x), y, 10});
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = reference::Activation(kind, x[i]);
      EXPECT_NEAR(y.As<float>()[i], expected, 3e-6 * std::fabs(expected) + 1e-37) << x[i];
    }
  }
}

TEST_P(ElementwiseTest, ReluWorksInPlaceAndFromItsOutput) {
  const Vec x = RandomVec(65, 1), dy = RandomVec(65, 2);
  Vec y(65), dx(65);
  for (int i = 0; i < 65; ++i) {
    y[i] = std::fmax(x[i], 0);
    dx[i] = x[i] > 0 ? dy[i] : 0;
  }
  const Buffer both = bench_.Floats(x), gradient = bench_.Floats(65);
  bench_.Run(ActivationForward{ActivationKind::kRelu, both, both, 65});
  bench_.Run(ActivationBackward{ActivationKind::kRelu, both, bench_.Floats(dy), gradient, 65});
  ExpectClose(both, y, 0, "y");
  ExpectClose(gradient, dx, 0, "dx");
}

TEST_P(ElementwiseTest, NotANumberPassesThrough) {
  for (const ActivationKind kind : kKinds) {
    const Buffer y = bench_.Floats(3);
    bench_.Run(ActivationForward{kind, bench_.Floats({1, NAN, 2}), y, 3});
    EXPECT_TRUE(std::isnan(y.As<float>()[1]));
    EXPECT_FALSE(std::isnan(y.As<float>()[0]));
  }
}

TEST_P(ElementwiseTest, AddMayOverwriteEitherOperand) {
  for (const int64_t n : kSizes) {
    const Vec a = RandomVec(n, 1), b = RandomVec(n, 2);
    const Buffer y = bench_.Floats(n), over_a = bench_.Floats(a), over_b = bench_.Floats(b);
    bench_.Run(Add{bench_.Floats(a), bench_.Floats(b), y, n});
    bench_.Run(Add{over_a, bench_.Floats(b), over_a, n});
    bench_.Run(Add{bench_.Floats(a), over_b, over_b, n});
    for (const Buffer& sum : {y, over_a, over_b}) ExpectClose(sum, Plus(a, b), 1e-7, "sum");
  }
}

TEST_P(ElementwiseTest, ZeroClearsAnyType) {
  for (const DType type : {DType::kF32, DType::kF64, DType::kI32, DType::kU8, DType::kBF16}) {
    for (const int64_t n : {int64_t{1}, int64_t{17}, int64_t{300'001}}) {
      const Buffer x = bench_.Raw(type, n);
      bench_.Run(Zero{x, n});
      const auto* bytes = static_cast<const unsigned char*>(x.data);
      int64_t left = 0;
      for (size_t i = 0; i < n * SizeOf(type); ++i) left += bytes[i] != 0;
      EXPECT_EQ(left, 0);
      bench_.device().Free(x.data);
    }
  }
}

TEST_P(ElementwiseTest, TransposeSwapsTheLastTwoAxes) {
  struct Shape {
    int64_t batch, rows, cols;
  };
  for (const auto& [batch, rows, cols] :
       {Shape{1, 1, 1}, Shape{2, 3, 17}, Shape{3, 65, 4}, Shape{1, 130, 67}, Shape{2, 64, 64}}) {
    const Vec x = RandomVec(batch * rows * cols, 1);
    Vec expected(x.size());
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          expected[(b * cols + j) * rows + i] = x[(b * rows + i) * cols + j];
        }
      }
    }
    const Buffer y = bench_.Floats(static_cast<int64_t>(x.size()));
    bench_.Run(Transpose{bench_.Floats(x), y, batch, rows, cols});
    ExpectClose(y, expected, 0, "y");
  }
}

TRAINYARD_CPU_SUITE(ElementwiseTest);

}  // namespace
}  // namespace trainyard::kernels
