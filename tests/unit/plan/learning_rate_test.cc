#include <gtest/gtest.h>

#include <cmath>

#include "executor/plan/plan.h"

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

}  // namespace
}  // namespace trainyard::plan
