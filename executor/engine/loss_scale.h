#pragma once

#include <cstdint>

namespace trainyard::engine {

// Dynamic loss scaling, as torch.amp.GradScaler: what gradients are multiplied by, and what became
// of the steps so far. Part of a checkpoint.
struct LossScale {
  float scale = 1;
  int64_t good_steps = 0;  // in a row, since the scale last changed
  int64_t skipped = 0;     // steps whose gradient was not finite, over the whole run

  friend bool operator==(const LossScale&, const LossScale&) = default;
};

// The scale after a step whose gradient was finite or not: halved at once if not, doubled after
// `growth_interval` good steps unless that would be infinite.
LossScale AfterStep(LossScale before, bool finite, int64_t growth_interval);

}  // namespace trainyard::engine
