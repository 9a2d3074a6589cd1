#include <cmath>

#include "executor/plan/plan.h"

namespace trainyard::plan {

double LearningRate(const v1::Schedule& schedule, int64_t steps_done, int64_t total_steps) {
  const double top = schedule.learning_rate();
  const int64_t warmup = schedule.warmup_steps();
  if (steps_done < warmup) {
    return top * static_cast<double>(steps_done + 1) / static_cast<double>(warmup + 1);
  }
  if (schedule.shape() != v1::Schedule::LINEAR && schedule.shape() != v1::Schedule::COSINE)
    return top;

  const int64_t decay = schedule.decay_steps() > 0 ? schedule.decay_steps() : total_steps;
  const double bottom = schedule.min_learning_rate();
  if (steps_done >= decay) return bottom;
  const double progress =
      static_cast<double>(steps_done - warmup) / static_cast<double>(decay - warmup);
  const double remaining = schedule.shape() == v1::Schedule::COSINE
                               ? 0.5 * (1.0 + std::cos(M_PI * progress))
                               : 1.0 - progress;
  return bottom + remaining * (top - bottom);
}

}  // namespace trainyard::plan
