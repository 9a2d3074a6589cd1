#pragma once

#include <algorithm>

#include "absl/random/random.h"
#include "absl/time/time.h"

namespace trainyard {

// How long to wait before the next try: grows by half, with jitter, so that many clients that lost
// one server do not come back in step.
class Backoff {
 public:
  Backoff(absl::Duration first, absl::Duration longest) : next_(first), longest_(longest) {}

  // At least `asked_for`: the delay that the server asked for, or zero.
  absl::Duration Next(absl::Duration asked_for = absl::ZeroDuration()) {
    const absl::Duration wait = std::max(next_ * absl::Uniform(random_, 0.8, 1.2),
                                         asked_for * absl::Uniform(random_, 1.0, 1.5));
    next_ = std::min(next_ * 1.5, longest_);
    return wait;
  }

 private:
  absl::Duration next_;
  absl::Duration longest_;
  absl::BitGen random_;
};

}  // namespace trainyard
