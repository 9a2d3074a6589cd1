#include "executor/engine/policies.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "executor/plan/spec/metrics.h"

namespace trainyard::engine {

void TakeValue(const v1::EarlyStopping& policy, const Score& score, EarlyStoppingState& state) {
  const plan::Metric metric = plan::MetricOf(policy);
  const double delta = metric.larger_is_better ? policy.min_delta() : -policy.min_delta();
  const bool improved = std::isfinite(score.value) &&
                        (!state.best || metric.Better(score.value, state.best->value + delta));
  if (improved) {
    state = {.best = score};
  } else {
    ++state.waited;
  }
}

std::string StopsEarly(const v1::EarlyStopping& policy, const EarlyStoppingState& state) {
  if (state.waited < policy.patience()) return "";
  const std::string than = state.best ? absl::StrCat(" better than ", state.best->value, " (step ",
                                                     state.best->step, ")")
                                      : " finite";
  return absl::StrCat("early stopping: ", policy.metric(), " of the held-out split was not", than,
                      " in ", state.waited, state.waited == 1 ? " evaluation" : " evaluations");
}

RunState AfterRollback(const RunState& now, int64_t failed, RunState then, int64_t step) {
  then.rollbacks = now.rollbacks + 1;
  then.skips.clear();
  for (const data::Skip& skip : now.skips) {
    if (skip.step <= step) then.skips.push_back(skip);
  }
  const int64_t next = data::BatchOfStep(failed, now.skips) + 1;
  then.skips.push_back({.step = step, .batches = next - data::BatchOfStep(step, then.skips)});
  return then;
}

bool EnterBest(const v1::BestCheckpoints& policy, const Score& score, std::vector<Score>& best) {
  if (!std::isfinite(score.value)) return false;
  const plan::Metric metric = plan::MetricOf(policy);
  // Behind all scores that are as good: of equal ones the earlier is better.
  const auto at = std::upper_bound(
      best.begin(), best.end(), score,
      [&](const Score& a, const Score& b) { return metric.Better(a.value, b.value); });
  if (at - best.begin() >= policy.keep()) return false;
  best.insert(at, score);
  if (static_cast<int64_t>(best.size()) > policy.keep()) best.resize(policy.keep());
  return true;
}

}  // namespace trainyard::engine
