#pragma once

// Which leases nobody renews any more. A lease is a counter; this measures how long it has stood
// still, on its own clock: no clock is compared with the store's, which may jump when a stand-by
// takes over.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "storage/records/node.h"

namespace trainyard {

class LeaseJudge {
 public:
  // `lease`: how long one may stand still.
  explicit LeaseJudge(absl::Duration lease) : lease_(lease) {}

  // Call with the nodes that the store answered at `now` on Clock::SinceBoot, `store_now` on the
  // store's clock: sets each node's lease_end to what is left of its lease, counted from store_now.
  // A node that was not there before has all of it.
  //
  // While the store is away no agent can renew anything. After a gap of more than kMostGap between
  // two answers the gap itself is not counted, and each node is left at least kLeastAfterGap to
  // come back.
  void Judge(absl::Duration now, absl::Time store_now, const std::vector<NodeRecord*>& nodes);

  // The store answered another call at `now`: the time until then is no gap.
  void Heard(absl::Duration now) { last_answer_ = now; }

  static constexpr absl::Duration kMostGap = absl::Seconds(2);
  static constexpr absl::Duration kLeastAfterGap = absl::Seconds(6);

 private:
  struct Seen {
    int64_t beat = 0;
    absl::Duration at;  // since when it has stood still
    int64_t round = 0;  // when it was seen last
  };

  const absl::Duration lease_;
  absl::Duration last_answer_ = absl::InfiniteDuration();
  int64_t round_ = 0;
  absl::flat_hash_map<std::string, Seen> seen_;  // by name
};

}  // namespace trainyard
