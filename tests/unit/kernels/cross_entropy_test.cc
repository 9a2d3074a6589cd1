#include "tests/reference/cross_entropy.h"

#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class CrossEntropyTest : public CpuTest {};

TEST_P(CrossEntropyTest, AgreesWithReference) {
  for (const int64_t rows : {1, 3, 65}) {
    for (const int64_t classes : {1, 3, 10, 17, 65, 1000}) {
      const Vec logits = RandomVec(rows * classes, 1, 4);
      std::vector<int32_t> targets = RandomIds(rows, static_cast<int32_t>(classes), 2);
      if (rows > 1) targets[1] = -1;
      const auto expected = reference::CrossEntropy(logits, targets, classes, 0.125);
      const Buffer losses = bench_.Floats(rows), correct = bench_.Floats(rows),
                   apart = bench_.Floats(rows * classes), in_place = bench_.Floats(logits);
      CrossEntropy op{.logits = bench_.Floats(logits),
                      .targets = bench_.Ints(targets),
                      .losses = losses,
                      .correct = correct,
                      .dlogits = apart,
                      .rows = rows,
                      .classes = classes,
                      .scale = 0.125f};
      bench_.Run(op);
      ExpectClose(losses, expected.losses, 1e-6, "losses");
      ExpectClose(correct, expected.correct, 0, "correct");
      ExpectClose(apart, expected.dlogits, 3e-6, "dlogits");
      op.logits = op.dlogits = in_place;
      bench_.Run(op);
      ExpectClose(losses, expected.losses, 1e-6, "losses");
      ExpectClose(in_place, expected.dlogits, 3e-6, "dlogits in place of logits");
    }
  }
}

// Between the rows are numbers larger than any logit, and stay. The last row ends where its classes
// do.
TEST_P(CrossEntropyTest, RowsThatLieApartGiveTheBitsOfDenseOnes) {
  constexpr double kBetween = 1000;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t classes : {3, 62, 2000, 9001, 35'001}) {
      const int64_t rows = classes > 2000 ? 3 : 37, step = (classes + 63) / 64 * 64,
                    all = (rows - 1) * step + classes;
      const Vec logits = RandomVec(rows * classes, 1, 4);
      const auto apart = [&](const Vec& dense) {
        Vec x(all, kBetween);
        for (int64_t i = 0; i < rows * classes; ++i) x[i / classes * step + i % classes] = dense[i];
        return x;
      };
      std::vector<int32_t> targets = RandomIds(rows, static_cast<int32_t>(classes), 2);
      targets[1] = -1;
      const auto run = [&](bool dense, bool in_place) {
        const Vec given = dense ? logits : apart(logits);
        const Buffer in = bench_.Elements(type, given), losses = bench_.Floats(rows),
                     z_losses = bench_.Floats(rows), correct = bench_.Floats(rows);
        const Buffer out = in_place ? in : bench_.Elements(type, Vec(given.size(), kBetween));
        const int64_t stride = dense ? 0 : step;
        bench_.Run(CrossEntropy{.logits = in.WithRowStride(stride),
                                .targets = bench_.Ints(targets),
                                .losses = losses,
                                .z_losses = z_losses,
                                .correct = correct,
                                .dlogits = out.WithRowStride(stride),
                                .rows = rows,
                                .classes = classes,
                                .scale = 0.125f,
                                .smoothing = 0.1f,
                                .z_loss = 1e-3f});
        Vec found = Bench::Read(out, static_cast<int64_t>(given.size()));
        if (dense) found = apart(found);
        for (const Buffer& b : {losses, z_losses, correct}) {
          const Vec values = Bench::Read(b, rows);
          found.insert(found.end(), values.begin(), values.end());
        }
        return found;
      };
      const Vec dense = run(true, false);
      EXPECT_EQ(run(false, false), dense) << classes;
      EXPECT_EQ(run(false, true), run(true, true)) << classes;
    }
  }
}

TEST_P(CrossEntropyTest, RefusesRowsThatOverlap) {
  const Buffer x = bench_.Floats(64);
  const auto prepared = [&](int64_t stride) {
    return bench_.device().Prepare(CrossEntropy{.logits = x.WithRowStride(stride),
                                                .targets = bench_.Ints({0, 1}),
                                                .losses = x,
                                                .rows = 2,
                                                .classes = 9});
  };
  EXPECT_TRUE(prepared(9).ok());
  EXPECT_TRUE(prepared(16).ok());
  for (const int64_t stride : {8, -9}) {
    EXPECT_EQ(prepared(stride).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(CrossEntropyTest, SmoothedLabelsAndZLossAgreeWithReference) {
  for (const auto& [smoothing, z_loss] : {std::pair{0.1, 0.0}, {0.0, 1e-2}, {0.3, 1e-3}}) {
    for (const int64_t classes : {2, 3, 17, 1000}) {
      const int64_t rows = 65;
      const Vec logits = RandomVec(rows * classes, 1, 4);
      std::vector<int32_t> targets = RandomIds(rows, static_cast<int32_t>(classes), 2);
      targets[1] = -1;
      targets[2] = -100;
      const auto expected =
          reference::CrossEntropy(logits, targets, classes, 0.125, smoothing, z_loss);
      const Buffer losses = bench_.Floats(rows), z_losses = bench_.Floats(rows),
                   both = bench_.Floats(logits);
      bench_.Run(CrossEntropy{.logits = both,
                              .targets = bench_.Ints(targets),
                              .losses = losses,
                              .z_losses = z_losses,
                              .dlogits = both,
                              .rows = rows,
                              .classes = classes,
                              .scale = 0.125f,
                              .smoothing = static_cast<float>(smoothing),
                              .z_loss = static_cast<float>(z_loss)});
      ExpectClose(losses, expected.losses, 2e-6, "losses");
      ExpectClose(z_losses, expected.z_losses, 2e-6, "z_losses");
      ExpectClose(both, expected.dlogits, 3e-6, "dlogits");
    }
  }
}

TEST_P(CrossEntropyTest, TargetsThatCountAreCountedOverMicroBatches) {
  const Buffer count = bench_.Raw(DType::kF64, 1);
  const Buffer targets = bench_.Ints({3, -1, 0, -100, 7});
  bench_.Run(CountTargets{targets, count, 5, false});
  EXPECT_EQ(*count.As<double>(), 3);
  bench_.Run(CountTargets{targets, count, 2, true});
  EXPECT_EQ(*count.As<double>(), 4);
}

TEST_P(CrossEntropyTest, WorksWithoutGradientAndWithoutCounting) {
  const Vec logits = RandomVec(5 * 9, 1);
  const std::vector<int32_t> targets = {0, 8, 3, 3, 7};
  const Buffer losses = bench_.Floats(5), in = bench_.Floats(logits);
  bench_.Run(CrossEntropy{
      .logits = in, .targets = bench_.Ints(targets), .losses = losses, .rows = 5, .classes = 9});
  ExpectClose(losses, reference::CrossEntropy(logits, targets, 9, 1).losses, 1e-6, "losses");
  ExpectClose(in, logits, 0, "logits");
}

TEST_P(CrossEntropyTest, OnlyTheFirstOfEqualLogitsIsCorrect) {
  const Buffer correct = bench_.Floats(3);
  bench_.Run(CrossEntropy{.logits = bench_.Floats({2, 5, 5, 2, 5, 5, 5, 1, 1}),
                          .targets = bench_.Ints({1, 2, 0}),
                          .losses = bench_.Floats(3),
                          .correct = correct,
                          .rows = 3,
                          .classes = 3});
  EXPECT_EQ(Bench::Read(correct, 3), (Vec{1, 0, 1}));
}

TEST_P(CrossEntropyTest, NotANumberInTheLogitsShowsInTheLoss) {
  Vec logits = RandomVec(3 * 40, 1);
  logits[40 + 33] = NAN;
  const Buffer losses = bench_.Floats(3);
  bench_.Run(CrossEntropy{.logits = bench_.Floats(logits),
                          .targets = bench_.Ints({1, 2, 0}),
                          .losses = losses,
                          .rows = 3,
                          .classes = 40});
  EXPECT_FALSE(std::isnan(losses.As<float>()[0]));
  EXPECT_TRUE(std::isnan(losses.As<float>()[1]));
}

TEST_P(CrossEntropyTest, HugeLogitsGiveFiniteLoss) {
  const Buffer losses = bench_.Floats(2), dlogits = bench_.Floats(6);
  bench_.Run(CrossEntropy{.logits = bench_.Floats({1e6, -1e6, 0, -3e38, 3e38, 0}),
                          .targets = bench_.Ints({0, 1}),
                          .losses = losses,
                          .dlogits = dlogits,
                          .rows = 2,
                          .classes = 3});
  EXPECT_EQ(Bench::Read(losses, 2), (Vec{0, 0}));
  EXPECT_EQ(Bench::Read(dlogits, 6), Vec(6, 0.0));
}

TEST_P(CrossEntropyTest, SumAgreesWithReferenceAndAccumulates) {
  for (const int64_t n : {0, 1, 3, 17, 65, 8192, 8193, 100'003}) {
    const Vec x = RandomVec(n, 1);
    double expected = 0;
    for (const double v : x) expected += v;
    const Buffer sum = bench_.Raw(DType::kF64, 1);
    bench_.Run(Sum{bench_.Floats(x), sum, n, false});
    EXPECT_NEAR(*sum.As<double>(), expected, 1e-9);
    bench_.Run(Sum{bench_.Floats(x), sum, n, true});
    EXPECT_NEAR(*sum.As<double>(), 2 * expected, 1e-9);
  }
}

TRAINYARD_CPU_SUITE(CrossEntropyTest);

}  // namespace
}  // namespace trainyard::kernels
