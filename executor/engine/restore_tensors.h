#pragma once

#include "absl/status/status.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

// Parameters, buffers, optimizer state and averages of `checkpoint` into the session's arena:
// adapters and what they adapt from files of their own, not as they were merged. kDataLoss when a
// file is missing or a tensor does not fit the plan.
absl::Status RestoreTensors(const Checkpoint& checkpoint, Session& session);

}  // namespace trainyard::engine
