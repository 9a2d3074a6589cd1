#include "executor/engine/loss_scale.h"

#include <cmath>

namespace trainyard::engine {

LossScale AfterStep(LossScale before, bool finite, int64_t growth_interval) {
  LossScale after = before;
  if (!finite) {
    after.scale *= 0.5f;
    after.good_steps = 0;
    ++after.skipped;
  } else if (++after.good_steps == growth_interval) {
    if (std::isfinite(after.scale * 2)) after.scale *= 2;
    after.good_steps = 0;
  }
  return after;
}

}  // namespace trainyard::engine
