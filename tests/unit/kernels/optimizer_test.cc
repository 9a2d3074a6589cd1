#include "tests/reference/optimizer.h"

#include "kernels/step_state.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class OptimizerTest : public CpuTest {};

constexpr int64_t kSizes[] = {1, 3, 17, 65, 20'001};

TEST_P(OptimizerTest, AdamWFollowsReferenceOverManySteps) {
  for (const int64_t n : kSizes) {
    const reference::AdamWRates rates{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
    reference::AdamWState expected{RandomVec(n, 1), Vec(n, 0.0), Vec(n, 0.0)};
    const Buffer grad = bench_.Floats(n), scale = bench_.Floats(Vec{0.5});
    StepState state{.learning_rate = 3e-3f};
    const AdamWStep op{.w = bench_.Floats(expected.w),
                       .grad = grad,
                       .m = bench_.Floats(expected.m),
                       .v = bench_.Floats(expected.v),
                       .grad_scale = scale,
                       .state = &state,
                       .n = n,
                       .beta1 = 0.9f,
                       .beta2 = 0.99f,
                       .epsilon = 1e-8f,
                       .weight_decay = 0.1f};
    for (state.step = 0; state.step < 20; ++state.step) {
      const Vec g = RandomVec(n, 100 + static_cast<int>(state.step));
      for (int64_t i = 0; i < n; ++i) grad.As<float>()[i] = static_cast<float>(g[i]);
      bench_.Run(op);
      reference::AdamWStep(g, 0.5, rates, state.step, expected);
    }
    ExpectClose(op.w, expected.w, 1e-5, "w");
    ExpectClose(op.m, expected.m, 1e-5, "m");
    ExpectClose(op.v, expected.v, 1e-5, "v");
  }
}

TEST_P(OptimizerTest, SgdFollowsReferenceOverManySteps) {
  for (const int64_t n : kSizes) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool scaled : {true, false}) {
        reference::SgdState expected{RandomVec(n, 1), Vec(n, 0.0)};
        StepState state{.learning_rate = 0.05f};
        const Buffer grad = bench_.Floats(n);
        // The velocity begins as garbage: the first step may not read it.
        const SgdStep op{.w = bench_.Floats(expected.w),
                         .grad = grad,
                         .velocity = momentum == 0 ? Buffer() : bench_.Floats(n),
                         .grad_scale = scaled ? bench_.Floats(Vec{0.25}) : Buffer(),
                         .state = &state,
                         .n = n,
                         .momentum = static_cast<float>(momentum),
                         .weight_decay = 0.01f};
        for (state.step = 0; state.step < 10; ++state.step) {
          const Vec g = RandomVec(n, 100 + static_cast<int>(state.step));
          for (int64_t i = 0; i < n; ++i) grad.As<float>()[i] = static_cast<float>(g[i]);
          bench_.Run(op);
          reference::SgdStep(g, scaled ? 0.25 : 1, 0.05, momentum, 0.01, state.step, expected);
        }
        ExpectClose(op.w, expected.w, 1e-5, "w");
        if (momentum != 0) ExpectClose(op.velocity, expected.velocity, 1e-5, "velocity");
      }
    }
  }
}

TEST_P(OptimizerTest, SquaredNormAgreesWithReferenceAndAccumulates) {
  for (const int64_t n : {0, 1, 17, 65, 8193, 100'003}) {
    const Vec x = RandomVec(n, 1);
    double expected = 0;
    for (const double v : x) expected += v * v;
    const Buffer sum = bench_.Raw(DType::kF64, 1);
    bench_.Run(SquaredNorm{bench_.Floats(x), sum, n, false});
    EXPECT_NEAR(*sum.As<double>(), expected, 1e-12 * expected);
    bench_.Run(SquaredNorm{bench_.Floats(x), sum, n, true});
    EXPECT_NEAR(*sum.As<double>(), 2 * expected, 1e-12 * expected);
  }
}

TEST_P(OptimizerTest, ClippingScalesOnlyWhatIsTooLong) {
  const Buffer sum = bench_.Raw(DType::kF64, 1), norm = bench_.Floats(1), scale = bench_.Floats(1);
  const auto clip = [&](double squares, float max_norm) {
    *sum.As<double>() = squares;
    bench_.Run(ClipScale{.sum = sum, .norm = norm, .scale = scale, .max_norm = max_norm});
    return *scale.As<float>();
  };
  EXPECT_FLOAT_EQ(clip(16, 1), 1 / (4 + 1e-6f));
  EXPECT_EQ(*norm.As<float>(), 4);
  EXPECT_EQ(clip(0.25, 1), 1);
  EXPECT_EQ(clip(1e30, INFINITY), 1);
  EXPECT_TRUE(std::isnan(clip(NAN, 1)));
}

// 8 targets were planned for, 2 counted: the mean gradient is 4 times what was summed.
TEST_P(OptimizerTest, TheGradientIsTheMeanOverTheTargetsThatCount) {
  const Buffer sum = bench_.Raw(DType::kF64, 1), count = bench_.Raw(DType::kF64, 1),
               norm = bench_.Floats(1), scale = bench_.Floats(1);
  const auto clip = [&](double targets, float max_norm) {
    *sum.As<double>() = 9;
    *count.As<double>() = targets;
    bench_.Run(ClipScale{
        .sum = sum, .count = count, .norm = norm, .scale = scale, .rows = 8, .max_norm = max_norm});
    return *scale.As<float>();
  };
  EXPECT_EQ(clip(2, INFINITY), 4);
  EXPECT_EQ(*norm.As<float>(), 12);
  EXPECT_FLOAT_EQ(clip(2, 6), 4 * 0.5f);
  EXPECT_EQ(clip(8, INFINITY), 1);
  EXPECT_EQ(clip(0, INFINITY), 1);
}

TRAINYARD_CPU_SUITE(OptimizerTest);

}  // namespace
}  // namespace trainyard::kernels
