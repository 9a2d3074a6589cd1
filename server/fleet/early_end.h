#pragma once

#include <vector>

#include "storage/fleet_store.h"
#include "storage/records/feed.h"

namespace trainyard {

// Whether a rank among `events` says that it succeeded before the last step, by early stopping.
bool ClaimsEarlyEnd(const std::vector<RankEventRecord>& events);

// Replaces such a claim by a failure, and leaves out what follows, unless the job's own spec asks
// for early stopping. `desired` is what the node of `id` is to run; if it does not have the rank,
// nothing is known about it here, and the store judges it. Pure.
void CheckEarlyEnd(const RankId& id, const std::vector<DesiredRank>& desired,
                   std::vector<RankEventRecord>& events);

}  // namespace trainyard
