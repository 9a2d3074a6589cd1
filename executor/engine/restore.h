#pragma once

// Which checkpoint a run goes on from.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/data/dataset.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/run.h"

namespace trainyard::engine {

struct ChosenCheckpoint {
  Checkpoint checkpoint;
  std::vector<int64_t> damaged;       // steps of newer ones that could not be used
  std::vector<std::string> warnings;  // what was wrong with them
};

// The checkpoint `wanted`, or when it is missing or damaged the newest older one beside it that is
// whole. When none is, the failure of `wanted`. One that is whole and of `spec`, but not the one
// that was reported, is taken with a warning: a rollback wrote it anew and was killed before it
// could say so, and what it says is all that there is to know.
absl::StatusOr<ChosenCheckpoint> ChooseCheckpoint(ObjectStore& store, const RestorePoint& wanted,
                                                  const v1::JobSpec& spec);

// Removes the checkpoints past `restored` that a run which goes on from it does not meet again:
// they were written before a rollback, and what was to remove them was cut short.
absl::Status DeleteAbandoned(ObjectStore& store, const Checkpoint& restored);

// That going on from `checkpoint` under `spec` with `dataset` is what was begun: with the fault
// kSpec or kData with what differs.
absl::Status CheckFits(const Checkpoint& checkpoint, const v1::JobSpec& spec,
                       const data::Dataset& dataset);

}  // namespace trainyard::engine
