#pragma once

// Which checkpoint a run goes on from.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/run.h"

namespace trainyard::engine {

struct ChosenCheckpoint {
  Checkpoint checkpoint;
  std::vector<int64_t> damaged;       // steps of newer ones that could not be used
  std::vector<std::string> warnings;  // what was wrong with them
  bool in_memory = false;             // where an attempt left it; no store has it
};

// The checkpoint `wanted`, or when it is missing or damaged the newest older one beside it that is
// whole. When none is, the failure of `wanted`. A `wanted` that is whole and of `spec`, but whose
// manifest is not the one that was reported, is taken with a warning: a rollback wrote it anew and
// was killed before it could report that; it holds all that is needed to go on.
absl::StatusOr<ChosenCheckpoint> ChooseCheckpoint(ObjectStore& store, const RestorePoint& wanted,
                                                  const v1::JobSpec& spec);

// Removes the checkpoints past `restored` that a run from there will not write again: they are from
// before a rollback that was killed before it removed them.
absl::Status DeleteAbandoned(ObjectStore& store, const Checkpoint& restored);

// Checks that `spec` and `dataset` are those that `checkpoint` was trained with. If not, the
// failure has the fault kSpec or kData and says what differs.
absl::Status CheckFits(const Checkpoint& checkpoint, const v1::JobSpec& spec,
                       const data::Dataset& dataset);

}  // namespace trainyard::engine
