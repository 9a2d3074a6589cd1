#include "executor/plan/spec/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace trainyard::plan {

namespace {

// What is left of the way from learning_rate down to min_learning_rate; p in [0, 1].
double Remaining(v1::Schedule::Shape shape, double p, double power) {
  switch (shape) {
    case v1::Schedule::LINEAR:
      return 1 - p;
    case v1::Schedule::COSINE:
      return 0.5 * (1 + std::cos(M_PI * p));
    case v1::Schedule::POLYNOMIAL:
      return std::pow(1 - p, power);
    case v1::Schedule::ONE_MINUS_SQRT:
      return 1 - std::sqrt(p);
    default:
      return 1;
  }
}

int64_t MilestonesReached(const v1::Schedule& schedule, int64_t steps_done) {
  return std::upper_bound(schedule.milestones().begin(), schedule.milestones().end(), steps_done) -
         schedule.milestones().begin();
}

}  // namespace

double LearningRate(const v1::Schedule& schedule, int64_t steps_done, int64_t total_steps) {
  const double top = schedule.learning_rate(), bottom = schedule.min_learning_rate();
  const int64_t warmup = schedule.warmup_steps();
  if (steps_done < warmup) {
    return top * static_cast<double>(steps_done + 1) / static_cast<double>(warmup + 1);
  }
  if (schedule.shape() == v1::Schedule::CONSTANT) return top;
  if (schedule.shape() == v1::Schedule::STEP) {
    return top *
           std::pow(schedule.gamma(), static_cast<double>(MilestonesReached(schedule, steps_done)));
  }
  const bool stable = schedule.shape() == v1::Schedule::WARMUP_STABLE_DECAY;
  const int64_t begin = stable ? schedule.decay_start() : warmup;
  const int64_t end = schedule.decay_steps() > 0 ? schedule.decay_steps() : total_steps;
  if (steps_done < begin) return top;
  if (steps_done >= end) return bottom;
  const double p = static_cast<double>(steps_done - begin) / static_cast<double>(end - begin);
  return bottom + Remaining(stable ? schedule.decay() : schedule.shape(), p, schedule.power()) *
                      (top - bottom);
}

double EmaDecay(const v1::Training& training, int64_t steps_done) {
  if (!training.ema_warmup()) return training.ema_decay();
  const auto s = static_cast<double>(steps_done);
  return std::min(training.ema_decay(), (1 + s) / (10 + s));
}

}  // namespace trainyard::plan
