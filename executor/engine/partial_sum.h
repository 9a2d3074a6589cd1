#pragma once

#include "absl/types/span.h"

namespace trainyard::engine {

// A sum over some logical ranks: of losses and targets, and of gradients. As long on every rank.
// The memory may be a GPU's.
struct PartialSum {
  absl::Span<double> sums;
  absl::Span<float> gradients;
};

}  // namespace trainyard::engine
