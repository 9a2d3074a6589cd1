#pragma once

// What it means that a rank's process ended.

#include "storage/records/attempt.h"
#include "storage/records/feed.h"

namespace trainyard {

// With this code a worker ends whose lease is over.
inline constexpr int kExitFenced = 75;

// The failure of a rank that left without having reported more than that.
FailureRecord FailureOfExit(const RankRecord& rank, const RankExited& exited);

}  // namespace trainyard
