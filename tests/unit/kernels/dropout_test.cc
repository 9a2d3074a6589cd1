#include "kernels/step_state.h"
#include "tests/reference/elementwise.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class DropoutTest : public CpuTest {
 protected:
  // y of `samples` samples whose elements are all 1.
  Vec Kept(StepState state, uint32_t stream, int64_t samples, int64_t per_sample, float p) {
    const Buffer x = bench_.Floats(Vec(samples * per_sample, 1.0)),
                 y = bench_.Floats(samples * per_sample);
    bench_.Run(Dropout{x, y, {&state}, stream, samples, per_sample, p});
    return Bench::Read(y, samples * per_sample);
  }
};

TEST_P(DropoutTest, DropsExactlyWhatTheContractNames) {
  StepState state{.seed = 0x123456789abcdefull, .step = 7, .first_sample = 1000};
  for (const int64_t per_sample : {1, 3, 17, 65, 4096, 9001}) {
    for (const int64_t samples : {1, 3, 33}) {
      if (samples * per_sample > 100'000) continue;
      const Vec x = RandomVec(samples * per_sample, 1);
      const Vec keep = reference::DropoutKeep(state.seed, 5, state.step, state.first_sample,
                                              samples, per_sample, 0.2f);
      Vec y(x.size());
      for (size_t i = 0; i < x.size(); ++i) y[i] = keep[i] * x[i] / (1 - 0.2);
      const Buffer apart = bench_.Floats(samples * per_sample), in_place = bench_.Floats(x);
      bench_.Run(Dropout{bench_.Floats(x), apart, {&state}, 5, samples, per_sample, 0.2f});
      bench_.Run(Dropout{in_place, in_place, {&state}, 5, samples, per_sample, 0.2f});
      ExpectClose(apart, y, 1e-6, "y");
      ExpectClose(in_place, y, 1e-6, "y in place");
    }
  }
}

TEST_P(DropoutTest, KeepsTheRateAsked) {
  StepState state{.seed = 42, .step = 3};
  for (const float p : {0.0f, 0.1f, 0.5f, 0.9f}) {
    constexpr int64_t kN = 200'000;
    const Vec y = Kept(state, 1, 4, kN / 4, p);
    double kept = 0;
    for (const double v : y) kept += v != 0;
    // Five standard deviations.
    EXPECT_NEAR(kept / kN, 1 - p, 5 * std::sqrt(p * (1 - p) / kN) + 1e-12);
  }
}

TEST_P(DropoutTest, DoesNotDependOnTheSplitIntoMicroBatches) {
  constexpr int64_t kPer = 77;
  StepState state{.seed = 9, .step = 11, .first_sample = 0};
  const Vec whole = Kept(state, 2, 6, kPer, 0.3f);
  Vec pieces;
  for (const int64_t first : {0, 2, 4}) {
    state.first_sample = first;
    const Vec piece = Kept(state, 2, 2, kPer, 0.3f);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(whole, pieces);
}

TEST_P(DropoutTest, DiffersBySeedStreamStepAndSample) {
  const StepState base{.seed = 9, .step = 11, .first_sample = 0};
  const Vec first = Kept(base, 2, 1, 500, 0.5f);
  StepState other = base;
  other.seed = 10;
  EXPECT_NE(first, Kept(other, 2, 1, 500, 0.5f));
  other = base;
  other.step = 12;
  EXPECT_NE(first, Kept(other, 2, 1, 500, 0.5f));
  other = base;
  other.first_sample = 1;
  EXPECT_NE(first, Kept(other, 2, 1, 500, 0.5f));
  EXPECT_NE(first, Kept(base, 3, 1, 500, 0.5f));
}

TRAINYARD_CPU_SUITE(DropoutTest);

}  // namespace
}  // namespace trainyard::kernels
