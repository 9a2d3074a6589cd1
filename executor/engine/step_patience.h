#pragma once

// How long a rank waits for the others in a step.

#include <array>
#include <cstddef>

#include "absl/time/time.h"

namespace trainyard::engine {

// Ten times what a step usually takes, the median of the last ones, but at least a minute. As long
// as no step is known, kFirst: another rank may still prepare its kernels, or read its first
// data.
class StepPatience {
 public:
  static constexpr absl::Duration kFirst = absl::Minutes(10);

  // Called once per step, at the same place; returns how long to wait now.
  absl::Duration Next(absl::Time now);

 private:
  std::array<absl::Duration, 15> steps_ = {};
  size_t count_ = 0;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace trainyard::engine
