#pragma once

// The values of a metric point that tell the ranks of a gang apart ("ranks.compute_ms.max",
// "rank.3.wait_ms"; see MetricPoint in run.proto), as far as they can be true. Pure.

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "storage/records/feed.h"

namespace trainyard {

// How many values of a point were refused.
inline constexpr char kRefusedRankValues[] = "ranks.refused";

bool TellsOfRanks(absl::string_view name);

// Removes the values that cannot be true of a gang of `ranks` ranks: of a rank that it does not
// have, of another number of ranks, negative, NaN or infinite. If there were any, their number
// becomes the value kRefusedRankValues, which nobody else can set. Of a run, all values of a name
// are removed if one of them has to be.
void RefuseRankValues(int ranks, std::map<std::string, double>& values);
void RefuseRankValues(int ranks, MetricRun& run);

}  // namespace trainyard
