#pragma once

#include "absl/status/status.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

// Reads parameters, buffers, optimizer state and averages of `checkpoint` into the session's arena.
// Adapters and the weights that they adapt are read from files of their own, where they are not
// merged. kDataLoss when a file is missing or a tensor does not fit the plan.
absl::Status RestoreTensors(const Checkpoint& checkpoint, Session& session);

}  // namespace trainyard::engine
