#pragma once

// Whether the leader still renews its lease. The lease is a counter; this looks how long it has
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

  // What the store answered at `now` on Clock::SinceBoot. Returns how long the lease may go on
  // standing still: zero, and another may lead. It counts from when this saw it change; after a gap
  // of more than kMostGap between two answers, in which the leader may have had no store either, it
  // counts anew.
  absl::Duration Left(absl::Duration now, const LeaderRecord& leader);

  static constexpr absl::Duration kMostGap = absl::Seconds(2);

 private:
  const absl::Duration lease_;
  std::optional<int64_t> beat_;
  absl::Duration since_;  // it has stood still
  absl::Duration last_answer_ = -absl::InfiniteDuration();
};

}  // namespace trainyard
