#include "tests/reference/optimizer.h"

#include "kernels/step_state.h"
#include "tests/reference/element.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class OptimizerTest : public CpuTest {
 protected:
  // Fills `to` with random numbers of its type, which it returns.
  static Vec FillRandom(const Buffer& to, int64_t n, int seed) {
    Vec values = RandomVec(n, seed);
    for (int64_t i = 0; i < n; ++i) {
      values[i] = reference::Rounded(to.dtype, values[i]);
      if (to.dtype == DType::kF32) {
        to.As<float>()[i] = static_cast<float>(values[i]);
      } else {
        static_cast<uint16_t*>(to.data)[i] = reference::ToBits(to.dtype, values[i]);
      }
    }
    return values;
  }

  static void Fill(const Buffer& to, const Vec& values, int64_t offset = 0) {
    for (size_t i = 0; i < values.size(); ++i) {
      to.As<float>()[offset + static_cast<int64_t>(i)] = static_cast<float>(values[i]);
    }
  }
};

constexpr int64_t kRegionSizes[] = {1, 3, 17, 65, 20'001};
constexpr DType kGradients[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST_P(OptimizerTest, AdamWFollowsReferenceOverManySteps) {
  for (const DType type : kGradients) {
    for (const int64_t n : kRegionSizes) {
      const reference::AdamWRates rates{
          .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
      reference::AdamWState expected{RandomVec(n, 1), Vec(n, 0.0), Vec(n, 0.0)};
      const Buffer grad = bench_.Raw(type, n), scale = bench_.Floats(Vec{0.5});
      const Buffer copy = n >= 65 ? bench_.Raw(DType::kBF16, n) : Buffer();
      StepState state{.learning_rate = 6e-3f};
      const AdamWStep op{.w = bench_.Floats(expected.w),
                         .grad = grad,
                         .m = bench_.Floats(expected.m),
                         .v = bench_.Floats(expected.v),
                         .grad_scale = scale,
                         .state = {&state},
                         .copy = copy,
                         .n = n,
                         .beta1 = 0.9f,
                         .beta2 = 0.99f,
                         .epsilon = 1e-8f,
                         .weight_decay = 0.1f,
                         .learning_rate_scale = 0.5f};
      for (state.updates = 0; state.updates < 20; ++state.updates) {
        const Vec g = FillRandom(grad, n, 100 + static_cast<int>(state.updates));
        bench_.Run(op);
        reference::AdamWStep(g, 0.5, rates, state.updates, expected);
      }
      ExpectClose(op.w, expected.w, 1e-5, "w");
      ExpectClose(op.m, expected.m, 1e-5, "m");
      ExpectClose(op.v, expected.v, 1e-5, "v");
      if (copy) ExpectClose(copy, expected.w, 1e-5, "copy");
    }
  }
}

TEST_P(OptimizerTest, SgdFollowsReferenceOverManySteps) {
  for (const DType type : kGradients) {
    for (const int64_t n : kRegionSizes) {
      for (const auto& [momentum, nesterov] : {std::pair(0.0, false), {0.9, false}, {0.9, true}}) {
        for (const bool scaled : {true, false}) {
          const reference::SgdRates rates{
              .lr = 0.05, .momentum = momentum, .weight_decay = 0.01, .nesterov = nesterov};
          reference::SgdState expected{RandomVec(n, 1), Vec(n, 0.0)};
          StepState state{.learning_rate = 0.1f};
          const Buffer grad = bench_.Raw(type, n);
          // The velocity begins as garbage: the first step may not read it.
          const SgdStep op{.w = bench_.Floats(expected.w),
                           .grad = grad,
                           .velocity = momentum == 0 ? Buffer() : bench_.Floats(n),
                           .grad_scale = scaled ? bench_.Floats(Vec{0.25}) : Buffer(),
                           .state = {&state},
                           .n = n,
                           .momentum = static_cast<float>(momentum),
                           .weight_decay = 0.01f,
                           .learning_rate_scale = 0.5f,
                           .nesterov = nesterov};
          for (state.updates = 0; state.updates < 10; ++state.updates) {
            const Vec g = FillRandom(grad, n, 100 + static_cast<int>(state.updates));
            bench_.Run(op);
            reference::SgdStep(g, scaled ? 0.25 : 1, rates, state.updates, expected);
          }
          ExpectClose(op.w, expected.w, 1e-5, "w");
          if (momentum != 0) ExpectClose(op.velocity, expected.velocity, 1e-5, "velocity");
        }
      }
    }
  }
}

// Of a gradient that is a multiple of what bf16 resolves, both types give the same bits.
TEST_P(OptimizerTest, AGradientInSixteenBitsGivesTheBitsOfTheSameInFp32) {
  constexpr int64_t n = 20'001;
  const Buffer narrow = bench_.Raw(DType::kBF16, n);
  const Vec g = FillRandom(narrow, n, 7);
  StepState state{.learning_rate = 6e-3f};
  std::vector<float> w[2];
  double norm[2];
  for (const bool wide : {false, true}) {
    const Buffer grad = wide ? bench_.Floats(g) : narrow, sum = bench_.Raw(DType::kF64, 1);
    const AdamWStep op{.w = bench_.Floats(RandomVec(n, 1)),
                       .grad = grad,
                       .m = bench_.Floats(Vec(n, 0.5)),
                       .v = bench_.Floats(Vec(n, 0.5)),
                       .state = {&state},
                       .n = n};
    bench_.Run(op);
    bench_.Run(SquaredNorm{grad, sum, n, false});
    w[wide].assign(op.w.As<float>(), op.w.As<float>() + n);
    norm[wide] = *sum.As<double>();
  }
  EXPECT_EQ(w[0], w[1]);
  EXPECT_EQ(norm[0], norm[1]);
}

TEST_P(OptimizerTest, AGradientOfIntegersIsRefused) {
  StepState state;
  const Buffer w = bench_.Floats(4), ids = bench_.Raw(DType::kI32, 4);
  for (const auto& prepared :
       {bench_.device().Prepare(
            AdamWStep{.w = w, .grad = ids, .m = w, .v = w, .state = {&state}, .n = 4}),
        bench_.device().Prepare(SgdStep{.w = w, .grad = ids, .state = {&state}, .n = 4}),
        bench_.device().Prepare(SquaredNorm{ids, bench_.Raw(DType::kF64, 1), 4, false})}) {
    EXPECT_EQ(prepared.status().code(), absl::StatusCode::kUnimplemented) << prepared.status();
  }
}

// A tensor that begins `offset` elements into its buffers, of which the rest may not be touched.
TEST_P(OptimizerTest, LambFollowsReferenceOverManySteps) {
  constexpr int64_t kMargin = 3;
  for (const int64_t n : kRegionSizes) {
    for (const auto& [offset, adapt] :
         std::vector<std::pair<int64_t, bool>>{{5, true}, {5, false}, {8, true}, {8, false}}) {
      const reference::AdamWRates rates{
          .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.1};
      reference::AdamWState expected{RandomVec(n, 1), Vec(n, 0.0), Vec(n, 0.0)};
      const int64_t all = offset + n + kMargin;
      const Buffer grad = bench_.Floats(Vec(all, 7)), scale = bench_.Floats(Vec{0.5});
      StepState state{.learning_rate = 6e-3f};
      const LambStep op{.w = bench_.Floats(Vec(all, 7)),
                        .grad = grad,
                        .m = bench_.Floats(Vec(all, 7)),
                        .v = bench_.Floats(Vec(all, 7)),
                        .grad_scale = scale,
                        .state = {&state},
                        .offset = offset,
                        .n = n,
                        .beta1 = 0.9f,
                        .beta2 = 0.99f,
                        .weight_decay = 0.1f,
                        .learning_rate_scale = 0.5f,
                        .adapt = adapt};
      Fill(op.w, expected.w, offset), Fill(op.m, expected.m, offset);
      Fill(op.v, expected.v, offset);
      for (state.updates = 0; state.updates < 20; ++state.updates) {
        const Vec g = RandomVec(n, 100 + static_cast<int>(state.updates));
        Fill(grad, g, offset);
        bench_.Run(op);
        reference::LambStep(g, 0.5, rates, adapt, state.updates, expected);
      }
      const auto framed = [&, offset = offset](const Vec& middle) {
        Vec framed(all, 7);
        std::copy(middle.begin(), middle.end(), framed.begin() + offset);
        return framed;
      };
      ExpectClose(op.w, framed(expected.w), 2e-5, "w");
      ExpectClose(op.m, framed(expected.m), 2e-5, "m");
      ExpectClose(op.v, framed(expected.v), 2e-5, "v");
    }
  }
}

TEST_P(OptimizerTest, LambTakesNoTrustRatioOfNothing) {
  StepState state{.learning_rate = 0.5f};
  const auto step = [&](double w, double g) {
    const LambStep op{.w = bench_.Floats(Vec(3, w)),
                      .grad = bench_.Floats(Vec(3, g)),
                      .m = bench_.Floats(Vec(3, 0)),
                      .v = bench_.Floats(Vec(3, 0)),
                      .state = {&state},
                      .n = 3};
    bench_.Run(op);
    return Bench::Read(op.w, 3)[0];
  };
  EXPECT_NEAR(step(0, 2), -0.5, 1e-6);  // weights of 0: the Adam step itself
  EXPECT_EQ(step(3, 0), 3);             // an update of 0
}

TEST_P(OptimizerTest, AveragesFollowReferenceOverManySteps) {
  for (const int64_t n : kRegionSizes) {
    for (const bool warmup : {false, true}) {
      Vec expected = RandomVec(n, 1);
      StepState state;
      const EmaStep op{.average = bench_.Floats(expected),
                       .w = bench_.Floats(n),
                       .state = {&state},
                       .n = n,
                       .decay = 0.9999,
                       .warmup = warmup};
      for (state.step = 0; state.step < 30; ++state.step) {
        const Vec w = RandomVec(n, 100 + static_cast<int>(state.step));
        Fill(op.w, w);
        bench_.Run(op);
        reference::EmaStep(w, op.decay, warmup, state.step, expected);
      }
      ExpectClose(op.average, expected, 1e-5, "average");
    }
  }
}

TEST_P(OptimizerTest, AnAverageOfWhatDoesNotMoveIsThatAndWithoutDecayTheWeights) {
  StepState state;
  const Vec w = RandomVec(100, 1);
  EmaStep op{.average = bench_.Floats(w), .w = bench_.Floats(w), .state = {&state}, .n = 100};
  op.decay = 0.9999;
  for (int i = 0; i < 1000; ++i) bench_.Run(op);
  EXPECT_EQ(Bench::Read(op.average, 100), w);
  op.average = bench_.Floats(Vec(100, 0));
  op.decay = 0;
  bench_.Run(op);
  EXPECT_EQ(Bench::Read(op.average, 100), w);
}

TEST_P(OptimizerTest, MuonMomentumFollowsReference) {
  constexpr int64_t kOffset = 5;
  for (const int64_t n : kRegionSizes) {
    for (const bool nesterov : {true, false}) {
      Vec velocity = RandomVec(n, 1);
      const MuonMomentum op{.grad = bench_.Floats(kOffset + n),
                            .velocity = bench_.Floats(kOffset + n),
                            .y = bench_.Floats(n),
                            .grad_scale = bench_.Floats(Vec{0.5}),
                            .offset = kOffset,
                            .n = n,
                            .nesterov = nesterov};
      Fill(op.velocity, velocity, kOffset);
      for (int step = 0; step < 5; ++step) {
        const Vec g = RandomVec(n, 100 + step);
        Fill(op.grad, g, kOffset);
        bench_.Run(op);
        const Vec y = reference::MuonMomentum(g, 0.5, 0.95, nesterov, velocity);
        ExpectClose(op.y, y, 1e-5, "y");
      }
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_NEAR(op.velocity.As<float>()[kOffset + i], velocity[i], 1e-5);
      }
    }
  }
}

// The ops of a plan, one after the other: tall, wide and square.
TEST_P(OptimizerTest, NewtonSchulzMakesMatricesOrthogonalAsTheReferenceDoes) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {3, 7}, {7, 3}, {16, 16}, {65, 40}, {33, 130}}) {
    const Vec before = RandomVec(rows * cols, 1, 1e-3);
    const bool wide = rows <= cols;
    const int64_t small = std::min(rows, cols), n = rows * cols;
    Buffer x = bench_.Floats(before), next = bench_.Floats(n);
    const Buffer gram = bench_.Floats(small * small), square = bench_.Floats(small * small);
    const Buffer sum = bench_.Raw(DType::kF64, 1);
    bench_.Run(SquaredNorm{x, sum, n, false});
    bench_.Run(DivideByNorm{x, sum, n});
    for (int i = 0; i < 5; ++i) {
      bench_.Run(Matmul{.a = x,
                        .b = x,
                        .c = gram,
                        .m = small,
                        .n = small,
                        .k = wide ? cols : rows,
                        .transpose_a = !wide,
                        .transpose_b = wide});
      bench_.Run(Matmul{.a = gram, .b = gram, .c = square, .m = small, .n = small, .k = small});
      bench_.Run(NewtonSchulz{gram, square, small, 3.4445f, -4.7750f, 2.0315f});
      bench_.Run(Matmul{.a = wide ? square : x,
                        .b = wide ? x : square,
                        .c = next,
                        .m = rows,
                        .n = cols,
                        .k = small});
      std::swap(x, next);
    }
    ExpectClose(x, reference::Orthogonalized(before, rows, cols, 5), 1e-4, "x");
  }
}

TEST_P(OptimizerTest, MuonStepDecaysAndSteps) {
  constexpr int64_t kOffset = 5;
  for (const int64_t n : kRegionSizes) {
    const Vec w = RandomVec(kOffset + n, 1), x = RandomVec(n, 2);
    StepState state{.learning_rate = 0.25f};
    const MuonStep op{.w = bench_.Floats(w),
                      .x = bench_.Floats(x),
                      .state = {&state},
                      .offset = kOffset,
                      .n = n,
                      .scale = 3,
                      .weight_decay = 0.5f,
                      .learning_rate_scale = 0.5f};
    bench_.Run(op);
    Vec expected = w;
    for (int64_t i = 0; i < n; ++i) {
      expected[kOffset + i] -= 0.125 * (0.5 * expected[kOffset + i] + 3 * x[i]);
    }
    ExpectClose(op.w, expected, 1e-6, "w");
  }
}

TEST_P(OptimizerTest, ANormOfLeavesIsTheSameWhereverItsLeavesComeFrom) {
  for (const int64_t n : {int64_t{1}, int64_t{17}, kNormLeaf, kNormLeaf + 1, 5 * kNormLeaf}) {
    const int64_t count = (n + kNormLeaf - 1) / kNormLeaf;
    const Buffer x = bench_.Raw(DType::kF32, n), leaves = bench_.Raw(DType::kF64, count);
    const Buffer sum = bench_.Raw(DType::kF64, 1), whole = bench_.Raw(DType::kF64, 1);
    double expected = 0;
    for (const double v : FillRandom(x, n, 1)) expected += v * v;
    bench_.Run(SquaredNormLeaves{.x = x, .leaves = leaves, .n = n});
    bench_.Run(AddLeaves{.leaves = leaves, .sum = sum, .count = count});
    EXPECT_NEAR(*sum.As<double>(), expected, 1e-12 * expected);
    *whole.As<double>() = *sum.As<double>();
    for (int64_t i = 0; i < count; ++i) {  // each by itself, the last first
      const int64_t leaf = count - 1 - i, first = leaf * kNormLeaf;
      const int64_t length = std::min(kNormLeaf, n - first);
      const Buffer part = bench_.Raw(DType::kF32, length);
      std::copy_n(x.As<float>() + first, length, part.As<float>());
      bench_.Run(SquaredNormLeaves{
          .x = part, .leaves = {leaves.As<double>() + leaf, DType::kF64}, .n = length});
    }
    bench_.Run(AddLeaves{.leaves = leaves, .sum = sum, .count = count});
    EXPECT_EQ(*sum.As<double>(), *whole.As<double>()) << n;
  }
}

TEST_P(OptimizerTest, SquaredNormAgreesWithReferenceAndAccumulates) {
  for (const DType type : kGradients) {
    for (const int64_t n : {0, 1, 17, 65, 8193, 100'003}) {
      const Buffer x = bench_.Raw(type, n), sum = bench_.Raw(DType::kF64, 1);
      double expected = 0;
      for (const double v : FillRandom(x, n, 1)) expected += v * v;
      bench_.Run(SquaredNorm{x, sum, n, false});
      EXPECT_NEAR(*sum.As<double>(), expected, 1e-12 * expected);
      bench_.Run(SquaredNorm{x, sum, n, true});
      EXPECT_NEAR(*sum.As<double>(), 2 * expected, 1e-12 * expected);
    }
  }
}

TEST_P(OptimizerTest, ClippingScalesOnlyWhatIsTooLong) {
  const Buffer sum = bench_.Raw(DType::kF64, 1), norm = bench_.Floats(1), scale = bench_.Floats(1);
  const auto clip = [&](double squares, float max_norm) {
    *sum.As<double>() = squares;
    *scale.As<float>() = 0;
    bench_.Run(ClipScale{.sum = sum, .norm = norm, .scale = scale, .max_norm = max_norm});
    return *scale.As<float>();
  };
  EXPECT_FLOAT_EQ(clip(16, 1), 1 / (4 + 1e-6f));
  EXPECT_EQ(*norm.As<float>(), 4);
  EXPECT_EQ(clip(0.25, 1), 1);
  EXPECT_EQ(clip(1e30, INFINITY), 1);
  EXPECT_TRUE(std::isnan(clip(NAN, 1)));
}

TEST_P(OptimizerTest, WithALossOrNormThatIsNotFiniteNoStepIsTakenUntilThatWasSeen) {
  const Buffer sum = bench_.Raw(DType::kF64, 1), loss = bench_.Raw(DType::kF64, 1),
               norm = bench_.Floats(1), scale = bench_.Floats(1);
  for (const float max_norm : {1.0f, INFINITY}) {
    const auto taken = [&](double squares, double of_loss) {
      *sum.As<double>() = squares;
      *loss.As<double>() = of_loss;
      bench_.Run(
          ClipScale{.sum = sum, .loss = loss, .norm = norm, .scale = scale, .max_norm = max_norm});
      return !std::isnan(*scale.As<float>());
    };
    for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
      for (const bool in_loss : {false, true}) {
        *scale.As<float>() = 0;
        EXPECT_TRUE(taken(1, 1));
        EXPECT_FALSE(in_loss ? taken(1, bad) : taken(bad, 1)) << bad;
        EXPECT_FALSE(taken(1, 1));
      }
    }
    *scale.As<float>() = 0;
    EXPECT_FALSE(taken(1e100, 1));  // past fp32
  }
}

// Once as it should be, so that it is seen to change them, and once with a NaN for its scale.
TEST_P(OptimizerTest, AStepThatIsNotTakenChangesNothing) {
  constexpr int64_t kN = 300, kRows = 4, kWidth = 8;
  const Buffer scale = bench_.Floats(1);
  StepState state{.step = 3, .learning_rate = 0.5f, .updates = 2};
  const auto check = [&](const char* name, auto op, std::vector<Buffer> kept) {
    op.grad_scale = scale;
    if constexpr (requires { op.state; }) op.state = {&state};
    for (const float value : {NAN, 0.5f}) {
      *scale.As<float>() = value;
      std::vector<Vec> before;
      for (const Buffer& b : kept) before.push_back(Bench::Read(b, kN));
      bench_.Run(op);
      for (size_t i = 0; i < kept.size(); ++i) {
        EXPECT_EQ(Bench::Read(kept[i], kN) == before[i], std::isnan(value)) << name << " " << i;
      }
    }
  };
  const auto random = [&](int seed) { return bench_.Floats(RandomVec(kN, seed)); };
  const Buffer w = random(1), grad = random(2), m = random(3), copy = bench_.Raw(DType::kBF16, kN);
  Vec squares = RandomVec(kN, 4);
  for (double& v : squares) v *= v;
  const Buffer v = bench_.Floats(squares);
  memset(copy.data, 0, kN * 2);
  check("sgd",
        SgdStep{.w = w, .grad = grad, .velocity = m, .copy = copy, .n = kN, .momentum = 0.5f},
        {w, m, copy});
  check("adamw", AdamWStep{.w = w, .grad = grad, .m = m, .v = v, .copy = copy, .n = kN},
        {w, m, v, copy});
  for (const bool adapt : {false, true}) {
    check("lamb", LambStep{.w = w, .grad = grad, .m = m, .v = v, .n = kN, .adapt = adapt},
          {w, m, v});
  }
  check("muon momentum", MuonMomentum{.grad = grad, .velocity = m, .y = random(5), .n = kN}, {m});
  check("muon", MuonStep{.w = w, .x = grad, .n = kN}, {w});
  check("ema", EmaStep{.average = m, .w = w, .n = kN, .decay = 0.5}, {m});
  check("copy", CopyIfTaken{.x = w, .y = m, .n = kN}, {m});
  TableList tables{.count = 1};
  tables.rows[0] = 20;
  const Buffer ids = bench_.Ints({3, -1, 0, 19});
  check("sgd rows",
        SgdRows{.grad = grad, .ids = ids, .tables = {w, tables}, .samples = kRows, .width = kWidth},
        {w});
  check("adamw rows",
        AdamWRows{.grad = grad,
                  .ids = ids,
                  .tables = {w, tables},
                  .m = {m, tables},
                  .v = {v, tables},
                  .samples = kRows,
                  .width = kWidth},
        {w, m, v});
}

// 8 targets were planned for, 2 counted: the mean gradient is 4 times what was summed.
TEST_P(OptimizerTest, TheGradientIsTheMeanOverTheTargetsThatCount) {
  const Buffer sum = bench_.Raw(DType::kF64, 1), count = bench_.Raw(DType::kF64, 1),
               norm = bench_.Floats(1), scale = bench_.Floats(1);
  const auto clip = [&](double targets, float max_norm) {
    *sum.As<double>() = 9;
    *count.As<double>() = targets;
    *scale.As<float>() = 0;
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
