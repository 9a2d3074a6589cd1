#pragma once

// Which checkpoints of a run stay. Pure.

#include <cstdint>
#include <vector>

#include "executor/engine/checkpoint/run_state.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// Which of `present` (steps of the checkpoints in a root) to remove now that `newest` is there: all
// but the `keep` newest up to `newest`, and but `kept_apart`. What lies past `newest` belongs to an
// earlier attempt that got further and will be met again. `damaged` ones do not count as kept, and
// go.
std::vector<int64_t> StepsToRemove(std::vector<int64_t> present, int64_t newest, int64_t keep,
                                   const std::vector<int64_t>& kept_apart,
                                   const std::vector<int64_t>& damaged);

// Which of `present` a rollback of the step after `steps_done` may go back to, newest first: those
// that every run of the spec has, written by checkpoint.every_steps or for their metric. Where a
// run happened to be suspended does not decide what it learns. The one that the last rollback went
// back to is left out when there is an older one: from there it failed again.
std::vector<int64_t> RollbackTargets(const std::vector<int64_t>& present, int64_t steps_done,
                                     const v1::JobSpec& spec, const RunState& state);

// What stays besides the newest ones: the best ones, and what a rollback from here or from past the
// next checkpoint would go back to.
std::vector<int64_t> KeptApart(const std::vector<int64_t>& present, int64_t newest,
                               const v1::JobSpec& spec, const RunState& state);

}  // namespace trainyard::engine
