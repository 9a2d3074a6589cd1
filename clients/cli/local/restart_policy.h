#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace trainyard::cli {

// When to start a part again that ended by itself: 50 ms after the first time, doubled up to 5 s
// while it keeps ending within 2 s of its start. Pure: the caller passes the times.
class RestartPolicy {
 public:
  // It ran for `lived`; returns how long to wait before the next start.
  absl::Duration OnExit(absl::Duration lived) {
    if (lived >= kSettled) wait_ = kFirst;
    early_exits_ = lived >= kSettled ? 1 : early_exits_ + 1;
    const absl::Duration wait = wait_;
    wait_ = std::min(wait_ * 2, kLongest);
    return wait;
  }

  // Exits in a row that came before the part had run for kSettled; an exit after that counts as the
  // first of a new row.
  int early_exits() const { return early_exits_; }

  static constexpr absl::Duration kFirst = absl::Milliseconds(50);
  static constexpr absl::Duration kLongest = absl::Seconds(5);
  static constexpr absl::Duration kSettled = absl::Seconds(2);

 private:
  absl::Duration wait_ = kFirst;
  int early_exits_ = 0;
};

}  // namespace trainyard::cli
