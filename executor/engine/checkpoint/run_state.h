#pragma once

// What a run remembers besides its tensors: part of every checkpoint (trainer_state/state.json), so
// that a run that was stopped and resumed decides as one that never was.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "executor/data/order.h"
#include "executor/engine/loss_scale.h"

namespace trainyard::engine {

// A finite value of a metric after `step` steps.
struct Score {
  int64_t step = 0;
  double value = 0;
  friend bool operator==(const Score&, const Score&) = default;
};

struct EarlyStoppingState {
  std::optional<Score> best;  // the last improvement
  int64_t waited = 0;         // evaluations since
  friend bool operator==(const EarlyStoppingState&, const EarlyStoppingState&) = default;
};

struct RunState {
  int64_t rollbacks = 0;
  std::vector<data::Skip> skips;  // data that rollbacks left out, ascending by step, newest last
  EarlyStoppingState early_stopping;
  std::vector<Score> best;              // of checkpoint.best, the best first
  std::optional<LossScale> loss_scale;  // of a run that scales its loss
  // The evaluation that belongs to this step failed: whoever goes on from here makes it first.
  bool unevaluated = false;
  std::string start_sha256;  // of the weights that a run with fine_tune.from began with
  friend bool operator==(const RunState&, const RunState&) = default;
};

// state.json.
struct StateFile {
  int64_t step = 0;
  uint64_t seed = 0;
  std::string spec_digest;
  int64_t next_sample = 0;  // of the whole run (data::Order)
  RunState run;
};

std::string StateToJson(const StateFile& state);

// kDataLoss: not one that StateToJson wrote, or a number out of range.
absl::StatusOr<StateFile> StateFromJson(absl::string_view json);

}  // namespace trainyard::engine
