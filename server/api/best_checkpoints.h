#pragma once

// Which checkpoints of a job are its best. Pure.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/records/feed.h"
#include "storage/records/job.h"

namespace trainyard {

// By the job's checkpoint.best: step to rank, from 1 for the best of `checkpoints`, at most
// best.keep; of equal ones the earlier step is better. Empty without such a policy. kInternal: the
// stored spec cannot be read.
absl::StatusOr<std::map<int64_t, int>> BestRanks(const JobRecord& job,
                                                 const std::vector<CheckpointRecord>& checkpoints);

}  // namespace trainyard
