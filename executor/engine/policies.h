#pragma once

// What a run decides from what it has seen. Pure; what must be remembered for it is in RunState.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/engine/checkpoint/run_state.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// Updates `state` with the score of an evaluation. One that is not finite is no improvement.
void TakeValue(const v1::EarlyStopping& policy, const Score& score, EarlyStoppingState& state);

// Why the run ends now although steps are left, or "": the policy has not waited long enough.
std::string StopsEarly(const v1::EarlyStopping& policy, const EarlyStoppingState& state);

// The state of a run, which was `now`, after a rollback: the step after `failed` steps was not
// finite, and the run goes back to its checkpoint after `step` steps, whose state is `then`. The
// data goes on after the batch that failed.
RunState AfterRollback(const RunState& now, int64_t failed, RunState then, int64_t step);

// Enters the score of an evaluation into `best` if it is among the policy.keep() best; returns
// whether it is.
bool EnterBest(const v1::BestCheckpoints& policy, const Score& score, std::vector<Score>& best);

}  // namespace trainyard::engine
