#include "executor/engine/step_patience.h"

#include <algorithm>

namespace trainyard::engine {
namespace {

constexpr int kSteps = 10;
constexpr absl::Duration kLeast = absl::Minutes(1);

}  // namespace

absl::Duration StepPatience::Next(absl::Time now) {
  if (last_ != absl::InfinitePast()) steps_[count_++ % steps_.size()] = now - last_;
  last_ = now;
  const size_t known = std::min(count_, steps_.size());
  if (known == 0) return kFirst;
  std::array<absl::Duration, 15> sorted = steps_;
  std::nth_element(sorted.begin(), sorted.begin() + known / 2, sorted.begin() + known);
  return std::max(kLeast, kSteps * sorted[known / 2]);
}

}  // namespace trainyard::engine
