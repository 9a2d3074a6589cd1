#pragma once

// Whether the leader still renews its lease. The lease is a counter; this measures how long it has
// stood still, on its own clock, as LeaseJudge does for nodes.

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "storage/scheduler_store.h"

namespace trainyard {

class LeaderJudge {
 public:
  // `lease`: how long it may stand still.
  explicit LeaderJudge(absl::Duration lease) : lease_(lease) {}

  // Call with what the store answered at `now` on Clock::SinceBoot. Returns how long the lease may
  // go on standing still; at zero another may lead. The time counts from when this saw the counter
  // change. After a gap of more than kMostGap between two answers, in which the leader may have had
  // no store either, it counts anew.
  absl::Duration Left(absl::Duration now, const LeaderRecord& leader);

  static constexpr absl::Duration kMostGap = absl::Seconds(2);

 private:
  const absl::Duration lease_;
  std::optional<int64_t> beat_;
  absl::Duration since_;  // since when it has stood still
  absl::Duration last_answer_ = -absl::InfiniteDuration();
};

}  // namespace trainyard
