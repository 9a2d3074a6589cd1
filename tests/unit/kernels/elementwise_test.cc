#include "tests/reference/elementwise.h"
#include "kernels/step_state.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

constexpr int64_t kSizes[] = {1, 3, 17, 65, 20'001};
constexpr ActivationKind kKinds[] = {ActivationKind::kRelu, ActivationKind::kGelu,
                                     ActivationKind::kGeluTanh, ActivationKind::kRelu6};

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
  for (const ActivationKind kind : {ActivationKind::kRelu, ActivationKind::kRelu6}) {
    const Vec x = RandomVec(65, 1, 5), dy = RandomVec(65, 2);
    Vec y(65), dx(65);
    for (int i = 0; i < 65; ++i) {
      y[i] = reference::Activation(kind, x[i]);
      dx[i] = dy[i] * reference::ActivationSlope(kind, x[i]);
    }
    const Buffer both = bench_.Floats(x), gradient = bench_.Floats(65);
    bench_.Run(ActivationForward{kind, both, both, 65});
    bench_.Run(ActivationBackward{kind, both, bench_.Floats(dy), gradient, 65});
    ExpectClose(both, y, 0, "y");
    ExpectClose(gradient, dx, 0, "dx");
  }
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

TEST_P(ElementwiseTest, FoldAddsToTheTotal) {
  for (const int64_t n : kSizes) {
    const Vec part = RandomVec(n, 1), total = RandomVec(n, 2);
    const Buffer sum = bench_.Floats(total);
    bench_.Run(Fold{.part = bench_.Floats(part), .total = sum, .n = n});
    ExpectClose(sum, Plus(total, part), 1e-7, "sum of f32");
    const Buffer parts = bench_.Raw(DType::kF64, n), totals = bench_.Raw(DType::kF64, n);
    for (int64_t i = 0; i < n; ++i) {
      parts.As<double>()[i] = part[i];
      totals.As<double>()[i] = total[i];
    }
    bench_.Run(Fold{.part = parts, .total = totals, .n = n});
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(totals.As<double>()[i], total[i] + part[i]);
  }
  EXPECT_EQ(
      bench_.device()
          .Prepare(Fold{.part = bench_.Floats(1), .total = bench_.Raw(DType::kF64, 1), .n = 1})
          .status()
          .code(),
      absl::StatusCode::kUnimplemented);
}

TEST_P(ElementwiseTest, AddBiasGoesToEveryRowAlsoInPlace) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {900, 13}, {2, 30'001}}) {
    const Vec x = RandomVec(rows * cols, 1), bias = RandomVec(cols, 2);
    Vec expected = x;
    for (int64_t i = 0; i < rows * cols; ++i) expected[i] += bias[i % cols];
    const Buffer y = bench_.Floats(rows * cols), in_place = bench_.Floats(x);
    bench_.Run(AddBias{bench_.Floats(x), bench_.Floats(bias), y, rows, cols});
    bench_.Run(AddBias{in_place, bench_.Floats(bias), in_place, rows, cols});
    for (const Buffer& sum : {y, in_place}) ExpectClose(sum, expected, 1e-7, "y");
  }
}

TEST_P(ElementwiseTest, ConcatPutsRowsSideBySideAndSplitTakesThemApart) {
  struct Shape {
    int64_t rows, a_cols, b_cols;
  };
  for (const auto& [rows, a_cols, b_cols] :
       {Shape{1, 1, 1}, Shape{3, 17, 4}, Shape{700, 3, 40}, Shape{2, 9000, 300}}) {
    const int64_t cols = a_cols + b_cols;
    const Vec both = RandomVec(rows * cols, 1);
    Vec a, b, repeated, without_a, without_b;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const bool left = i % cols < a_cols;
      (left ? a : b).push_back(both[i]);
      repeated.push_back(left ? both[i % cols] : both[i]);
      without_a.push_back(left ? 0 : both[i]);
      without_b.push_back(left ? both[i] : 0);
    }
    const Vec first(both.begin(), both.begin() + a_cols);
    const auto concat = [&, &rows = rows, &a_cols = a_cols, &b_cols = b_cols](
                            const Vec& a, const Vec& b, bool repeat_a) {
      const Buffer y = bench_.Floats(rows * cols);
      bench_.Run(Concat{a.empty() ? Buffer() : bench_.Floats(a),
                        b.empty() ? Buffer() : bench_.Floats(b), y, rows, a_cols, b_cols,
                        repeat_a});
      return y;
    };
    ExpectClose(concat(a, b, false), both, 0, "y");
    ExpectClose(concat(first, b, true), repeated, 0, "y of a repeated row");
    ExpectClose(concat({}, b, false), without_a, 0, "y without a");
    ExpectClose(concat(a, {}, false), without_b, 0, "y without b");

    const Buffer x = bench_.Floats(both), to_a = bench_.Floats(rows * a_cols),
                 to_b = bench_.Floats(rows * b_cols), alone = bench_.Floats(rows * b_cols);
    bench_.Run(Split{x, to_a, to_b, rows, a_cols, b_cols});
    bench_.Run(Split{x, Buffer(), alone, rows, a_cols, b_cols});
    ExpectClose(to_a, a, 0, "a");
    ExpectClose(to_b, b, 0, "b");
    ExpectClose(alone, b, 0, "b alone");
  }
}

TEST_P(ElementwiseTest, ZeroClearsAnyType) {
  for (const DType type : {DType::kF32, DType::kF64, DType::kI32, DType::kU8, DType::kBF16}) {
    for (const int64_t n : {int64_t{1}, int64_t{17}, int64_t{300'001}}) {
      const Buffer x = bench_.Raw(type, n);
      bench_.Run(Zero{x, n});
      const auto* bytes = static_cast<const unsigned char*>(x.data);
      int64_t left = 0;
      for (int64_t i = 0; i < n * SizeOf(type); ++i) left += bytes[i] != 0;
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
