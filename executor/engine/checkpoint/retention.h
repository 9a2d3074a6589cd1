#pragma once

// Which checkpoints of a run stay. Pure.

#include <cstdint>
#include <vector>

#include "executor/engine/checkpoint/run_state.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// Which of `present` (steps of the checkpoints in a root) to remove now that `newest` is there: of
// those up to `newest` all but the `keep` newest and `kept_apart`. Those past `newest` stay: an
// earlier attempt that got further wrote them, and this one will reach them. `damaged` ones do not
// count as kept and are removed.
std::vector<int64_t> StepsToRemove(std::vector<int64_t> present, int64_t newest, int64_t keep,
                                   const std::vector<int64_t>& kept_apart,
                                   const std::vector<int64_t>& damaged);

// Which of `present` a rollback of the step after `steps_done` may go back to, newest first: those
// that every run of the spec writes, by checkpoint.every_steps or for their metric, so that what a
// run learns does not depend on where it happened to be suspended. The one that the last rollback
// went back to is left out when there is an older one, since the run failed again from there.
std::vector<int64_t> RollbackTargets(const std::vector<int64_t>& present, int64_t steps_done,
                                     const v1::JobSpec& spec, const RunState& state);

// What stays besides the newest ones: the best ones, and those that a rollback from here, or from a
// step past the next checkpoint, would go back to.
std::vector<int64_t> StepsKeptBesidesNewest(const std::vector<int64_t>& present, int64_t newest,
                                            const v1::JobSpec& spec, const RunState& state);

}  // namespace trainyard::engine
