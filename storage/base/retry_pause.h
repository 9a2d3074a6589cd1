#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace trainyard {

// How long to wait before the next try: `first`, then twice as long each time, up to `longest`. The
// end of a short outage is thereby noticed at once, and a long one does not cause many tries.
class RetryPause {
 public:
  RetryPause(absl::Duration first, absl::Duration longest)
      : first_(first), longest_(longest), next_(first) {}

  absl::Duration Next() {
    const absl::Duration pause = std::min(next_, longest_);
    next_ = std::min(pause * 2, longest_);
    return pause;
  }
  // Call after a success: the next pause is `first` again.
  void Reset() { next_ = first_; }

 private:
  const absl::Duration first_;
  const absl::Duration longest_;
  absl::Duration next_;
};

}  // namespace trainyard
