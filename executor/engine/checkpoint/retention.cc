#include "executor/engine/checkpoint/retention.h"

#include <algorithm>

namespace trainyard::engine {
namespace {

bool Holds(const std::vector<int64_t>& steps, int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

// Checkpoints up to `steps_done` that every run of the spec writes, newest first.
std::vector<int64_t> Planned(const std::vector<int64_t>& present, int64_t steps_done,
                             const v1::JobSpec& spec, const RunState& state) {
  const int64_t every = spec.checkpoint().every_steps();
  std::vector<int64_t> steps;
  for (const int64_t step : present) {
    const bool best = std::any_of(state.best.begin(), state.best.end(),
                                  [&](const Score& score) { return score.step == step; });
    const bool planned = best || (every > 0 && step % every == 0);
    if (planned && step <= steps_done) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

}  // namespace

std::vector<int64_t> StepsToRemove(std::vector<int64_t> present, int64_t newest, int64_t keep,
                                   const std::vector<int64_t>& kept_apart,
                                   const std::vector<int64_t>& damaged) {
  std::sort(present.rbegin(), present.rend());
  std::vector<int64_t> remove;
  int64_t kept = 0;
  for (const int64_t step : present) {
    if (step > newest) continue;
    if (step != newest && Holds(damaged, step)) {
      remove.push_back(step);
    } else if (kept < keep) {
      ++kept;
    } else if (!Holds(kept_apart, step)) {
      remove.push_back(step);
    }
  }
  return remove;
}

std::vector<int64_t> RollbackTargets(const std::vector<int64_t>& present, int64_t steps_done,
                                     const v1::JobSpec& spec, const RunState& state) {
  std::vector<int64_t> targets = Planned(present, steps_done, spec, state);
  const bool again =
      !state.skips.empty() && targets.size() > 1 && targets.front() == state.skips.back().step;
  if (again) targets.erase(targets.begin());
  return targets;
}

std::vector<int64_t> StepsKeptBesidesNewest(const std::vector<int64_t>& present, int64_t newest,
                                            const v1::JobSpec& spec, const RunState& state) {
  std::vector<int64_t> steps;
  for (const Score& score : state.best) steps.push_back(score.step);
  if (spec.training().on_non_finite() == v1::Training::ROLL_BACK) {
    // Also the one that the last rollback went back to: RollbackTargets takes it again once there
    // is a newer one.
    const std::vector<int64_t> planned = Planned(present, newest, spec, state);
    const size_t n = std::min<size_t>(planned.size(), 2);
    steps.insert(steps.end(), planned.begin(), planned.begin() + n);
  }
  return steps;
}

}  // namespace trainyard::engine
