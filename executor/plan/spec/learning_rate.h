#pragma once

#include <cstdint>

#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// The learning rate of the step that follows `steps_done` steps.
double LearningRate(const v1::Schedule& schedule, int64_t steps_done, int64_t total_steps);

// The decay of the moving average in that step.
double EmaDecay(const v1::Training& training, int64_t steps_done);

}  // namespace trainyard::plan
