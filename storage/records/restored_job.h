#pragma once

// What becomes of a job when its yard's database is restored from a backup: pure.

#include <string>
#include <vector>

#include "storage/records/change.h"

namespace trainyard {

// What was recorded of a job's checkpoints, held against those that are there.
struct CheckpointsOfRestored {
  std::vector<CheckpointRecord> found;    // that the database did not know, or knew as others
  std::vector<CheckpointRecord> moved;    // that it knew elsewhere
  std::vector<CheckpointRecord> missing;  // that it knew, and that are not there any more
  std::vector<CheckpointRecord> now;      // what the job has then; by step
  bool unchanged() const { return found.empty() && moved.empty() && missing.empty(); }
};

// `there`: those in the folders of the job. What lies past the last step of the job is none of its.
CheckpointsOfRestored CompareCheckpoints(const JobRecord& job,
                                         const std::vector<CheckpointRecord>& recorded,
                                         const std::vector<CheckpointRecord>& there);

enum class RestoredAs {
  kTheYard,  // its nodes may still run what they ran
  kCopy,     // of a yard whose nodes go on working for that one: nothing runs for the copy
};

// Ends the ranks that the database says run: what they have reported since the backup is lost, so
// no more of their reports can be taken. The job goes on as a new attempt, and pays nothing. Ranks
// whose processes may live are LOST until their agents say that they do not. Unchanged if none
// runs.
AttemptChange FenceRanks(const JobRecord& job, const AttemptRecord& attempt, RestoredAs as,
                         absl::Time now);

// Adds to `change` what the restore found of the checkpoints of a job that has not ended, and tells
// its users of it.
void TakeRestoredCheckpoints(const CheckpointsOfRestored& checkpoints, absl::Time now,
                             JobChange& change);

}  // namespace trainyard
