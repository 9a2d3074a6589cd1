#pragma once

// Which attempts take too long to begin. Counts on the leader's own clock, as LeaseJudge does for
// nodes.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "storage/records/attempt.h"

namespace trainyard {

class StartJudge {
 public:
  // `limit`: how long a job may be STARTING.
  explicit StartJudge(absl::Duration limit) : limit_(limit) {}

  // Call with what the store answered at `now` on Clock::SinceBoot, `store_now` on the store's
  // clock: sets start_by of the attempts of all jobs that are STARTING to what is left of the
  // limit, counted from store_now. The limit counts from when this first saw the attempt. A gap of
  // more than kMostGap between two answers, in which no agent may have had a store either, is not
  // counted.
  void Judge(absl::Duration now, absl::Time store_now, const std::vector<AttemptRecord*>& starting);

  // The store answered another call at `now`: the time until then is no gap.
  void Heard(absl::Duration now);

  static constexpr absl::Duration kMostGap = absl::Seconds(2);

 private:
  void Count(absl::Duration now);

  const absl::Duration limit_;
  absl::Duration last_answer_ = absl::InfiniteDuration();
  absl::Duration counted_;  // time that was counted so far, without gaps
  // counted_ when it was first seen, by attempt.
  std::map<std::pair<std::string, int64_t>, absl::Duration> seen_;
};

}  // namespace trainyard
