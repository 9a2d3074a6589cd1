#pragma once

// The interaction of features on the CPU (cpu/vector/interaction.cc).

#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::scratch {

// Of one thread, in floats: the features of a sample, their transpose (or gradient) and their
// products, padded to vectors of 16.
constexpr int64_t InteractionFloats(int64_t count, int64_t width) {
  const int64_t features = count + 1;
  const int64_t padded_features = RoundUp(features, 16), padded_width = RoundUp(width, 16);
  return features * padded_width + padded_width * padded_features + features * padded_features;
}
constexpr int64_t Interaction(int64_t count, int64_t width, int64_t threads) {
  return kFloat * threads * InteractionFloats(count, width);
}

}  // namespace trainyard::kernels::scratch
