#pragma once

// A header of its own for cpu/vector/, whose files include no inline functions.

#include <cstdint>

namespace trainyard::kernels::scratch {

// Steps of the sum over pixels whose operands a thread packs at a time (weight_gradient.h). It is
// no power of two, or panels would share sets of the cache.
inline constexpr int64_t kWeightGradientDepth = 120;

}  // namespace trainyard::kernels::scratch
