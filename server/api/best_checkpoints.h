#pragma once

// Which checkpoints of a job are its best. Pure.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/records/feed.h"
#include "storage/records/job.h"

namespace trainyard {

// The best of `checkpoints` by the job's checkpoint.best, as step to rank, from 1 for the best, at
// most best.keep of them; of equal ones the earlier step is better. Empty when the job has no
// checkpoint.best. kInternal: the stored spec cannot be read.
absl::StatusOr<std::map<int64_t, int>> BestRanks(const JobRecord& job,
                                                 const std::vector<CheckpointRecord>& checkpoints);

}  // namespace trainyard
