#include <gtest/gtest.h>

#include <cmath>

#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/learning_rate.h"

namespace trainyard::plan {
namespace {

// nanoGPT's get_lr, word for word.
double NanoGpt(int64_t it, double learning_rate, int64_t warmup_iters, int64_t lr_decay_iters,
               double min_lr) {
  if (it < warmup_iters) {
    return learning_rate * static_cast<double>(it + 1) / static_cast<double>(warmup_iters + 1);
  }
  if (it > lr_decay_iters) return min_lr;
  const double decay_ratio =
      static_cast<double>(it - warmup_iters) / static_cast<double>(lr_decay_iters - warmup_iters);
  const double coeff = 0.5 * (1.0 + std::cos(M_PI * decay_ratio));
  return min_lr + coeff * (learning_rate - min_lr);
}

v1::Schedule Schedule(v1::Schedule::Shape shape, double top, int64_t warmup, double bottom) {
  v1::Schedule schedule;
  schedule.set_shape(shape);
  schedule.set_learning_rate(top);
  schedule.set_warmup_steps(warmup);
  schedule.set_min_learning_rate(bottom);
  return schedule;
}

TEST(LearningRate, CosineIsNanoGpts) {
  v1::Schedule schedule = Schedule(v1::Schedule::COSINE, 1e-3, 100, 1e-4);
  for (const int64_t steps : {int64_t{0}, int64_t{1}, int64_t{99}, int64_t{100}, int64_t{101},
                              int64_t{1050}, int64_t{1999}, int64_t{2000}, int64_t{5000}}) {
    EXPECT_DOUBLE_EQ(LearningRate(schedule, steps, 2000), NanoGpt(steps, 1e-3, 100, 2000, 1e-4))
        << steps;
  }
  schedule.set_decay_steps(1000);
  for (int64_t steps = 0; steps < 2000; steps += 37) {
    EXPECT_DOUBLE_EQ(LearningRate(schedule, steps, 2000), NanoGpt(steps, 1e-3, 100, 1000, 1e-4))
        << steps;
  }
}

TEST(LearningRate, ConstantStaysAfterItsWarmUp) {
  const v1::Schedule schedule = Schedule(v1::Schedule::CONSTANT, 0.4, 3, 0);
  const double expected[] = {0.1, 0.2, 0.3, 0.4, 0.4};
  for (int64_t steps = 0; steps < 5; ++steps) {
    EXPECT_DOUBLE_EQ(LearningRate(schedule, steps, 4), expected[steps]);
  }
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 1000000, 4), 0.4);
}

TEST(LearningRate, LinearFallsEvenlyToItsMinimum) {
  const v1::Schedule schedule = Schedule(v1::Schedule::LINEAR, 1.0, 0, 0.2);
  const double expected[] = {1.0, 0.8, 0.6, 0.4, 0.2, 0.2};
  for (int64_t steps = 0; steps < 6; ++steps) {
    EXPECT_NEAR(LearningRate(schedule, steps, 4), expected[steps], 1e-15);
  }
}

// What torch 1.13 printed for MultiStepLR([3, 5, 6], gamma=0.1) from 0.5.
TEST(LearningRate, StepIsTorchsMultiStepLR) {
  v1::Schedule schedule = Schedule(v1::Schedule::STEP, 0.5, 0, 0);
  for (const int64_t milestone : {3, 5, 6}) schedule.add_milestones(milestone);
  schedule.set_gamma(0.1);
  const double expected[] = {0.5, 0.5, 0.5, 0.05, 0.05, 0.005, 0.0005, 0.0005};
  for (int64_t steps = 0; steps < 8; ++steps) {
    EXPECT_NEAR(LearningRate(schedule, steps, 8), expected[steps], 1e-15) << steps;
  }
  // Milestones count from the start of the run, also behind a warm-up.
  schedule.set_warmup_steps(4);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 3, 8), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 4, 8), 0.05);
}

// What torch 1.13 printed for PolynomialLR(total_iters=5, power=2) from 0.5.
TEST(LearningRate, PolynomialIsTorchs) {
  v1::Schedule schedule = Schedule(v1::Schedule::POLYNOMIAL, 0.5, 0, 0);
  schedule.set_power(2);
  const double expected[] = {0.5, 0.32, 0.18, 0.08, 0.02, 0, 0};
  for (int64_t steps = 0; steps < 7; ++steps) {
    EXPECT_NEAR(LearningRate(schedule, steps, 5), expected[steps], 1e-15) << steps;
  }
}

// transformers' get_polynomial_decay_schedule_with_warmup, past its warm-up.
TEST(LearningRate, PolynomialEndsAtItsMinimumAsTransformersDoes) {
  v1::Schedule schedule = Schedule(v1::Schedule::POLYNOMIAL, 1e-3, 10, 1e-4);
  schedule.set_power(1.5);
  for (int64_t step = 10; step < 130; step += 7) {
    const double lr_range = 1e-3 - 1e-4, decay_steps = 100 - 10;
    const double pct_remaining = 1 - static_cast<double>(step - 10) / decay_steps;
    const double lr = step > 100 ? 1e-4 : lr_range * std::pow(pct_remaining, 1.5) + 1e-4;
    EXPECT_NEAR(LearningRate(schedule, step, 100), lr, 1e-18) << step;
  }
}

// transformers' get_wsd_schedule, past its warm-up: min_lr_ratio 0.1, decay_type as given.
TEST(LearningRate, WarmupStableDecayIsTransformers) {
  v1::Schedule schedule = Schedule(v1::Schedule::WARMUP_STABLE_DECAY, 1e-3, 10, 1e-4);
  schedule.set_decay_start(60);
  for (const auto shape :
       {v1::Schedule::LINEAR, v1::Schedule::COSINE, v1::Schedule::ONE_MINUS_SQRT}) {
    schedule.set_decay(shape);
    for (int64_t step = 10; step < 120; ++step) {
      double factor = 1;
      if (step >= 60) {
        const double progress = static_cast<double>(step - 60) / (100 - 60);
        if (shape == v1::Schedule::LINEAR) factor = 1.0 - progress;
        if (shape == v1::Schedule::COSINE)
          factor = 0.5 * (1.0 + std::cos(M_PI * 0.5 * 2.0 * progress));
        if (shape == v1::Schedule::ONE_MINUS_SQRT) factor = 1.0 - std::sqrt(progress);
        factor = factor * (1.0 - 0.1) + 0.1;
      }
      if (step >= 100) factor = 0.1;
      EXPECT_NEAR(LearningRate(schedule, step, 100), 1e-3 * factor, 1e-18) << step;
    }
  }
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 4, 100), 1e-3 * 5 / 11);  // warming up
}

TEST(LearningRate, OneMinusSqrtFallsFromTheEndOfTheWarmUp) {
  const v1::Schedule schedule = Schedule(v1::Schedule::ONE_MINUS_SQRT, 1, 4, 0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 4, 20), 1);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 8, 20), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 20, 20), 0);
}

}  // namespace
}  // namespace trainyard::plan
