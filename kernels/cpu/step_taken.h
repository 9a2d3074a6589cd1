#pragma once

#include <cmath>

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Whether the step is taken; if not (grad_scale is NaN), an update leaves its results as they are
// (ClipScale).
inline bool IsTaken(const Buffer& grad_scale) {
  return !grad_scale || !std::isnan(*grad_scale.As<float>());
}

}  // namespace trainyard::kernels
