#pragma once

// Trains: one optimizer step after the other.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/data/loader.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "executor/engine/load_weights.h"
#include "executor/engine/loss_scale.h"
#include "executor/engine/session.h"
#include "kernels/step_state.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// What a step did.
struct StepResult {
  double loss = 0;    // mean over the targets of the global batch that count; 0 when none does
  double z_loss = 0;  // its part of training.z_loss
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping, of the loss without its scale
  bool finite = true;    // loss and norm; if not, the step was not taken
  // With fp16: they are not, which the scale of the loss may have done. The step counts as done,
  // has changed no parameter, optimizer state or buffer, and the loss is scaled less from then on.
  bool skipped = false;
};

// Delivers micro-batches in order (data::Loader::Next).
using BatchSource = std::function<absl::StatusOr<data::Loader::Batch>()>;

// The state of training lives in the session's arena. Everything is a function of the spec, the
// data and the steps done: a trainer restored from a checkpoint goes on with the same bits.
// Thread-compatible.
class Trainer {
 public:
  // Zeroes the arena and prepares the step. `spec` must come from ResolveSpec.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Session& session, const v1::JobSpec& spec);

  // Step 0: draws the parameters from the seed, or reads them from fine_tune.from.
  absl::Status Initialize(int threads);

  // What Initialize read, if anything.
  const std::optional<LoadedWeights>& loaded() const { return loaded_; }

  // Brings what is made from the parameters up to them: their copies in 16 bits, and the averages,
  // which become the parameters as they are. Part of Initialize; for whoever writes other
  // parameters into the session after it.
  absl::Status TakeParameters();

  // The state of `checkpoint`, read straight into the arena; kDataLoss when a tensor does not fit.
  absl::Status Restore(const Checkpoint& checkpoint);

  int64_t steps_done() const { return steps_done_; }
  // After the last step; with fp16.
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }

  // One step. When loss or gradient norm are not finite it is not taken: steps done, parameters,
  // optimizer state and buffers are as before. With fp16 it is skipped instead (see StepResult),
  // until the scale is so low that it cannot be what makes them overflow.
  absl::StatusOr<StepResult> Step(const BatchSource& next);

  // Makes that step again, up to the update, from the same micro-batches (`next` delivers them
  // anew), and names the first value that is not finite; "" when there is none this time: the bits
  // of a step are always the same, so the machine is at fault.
  absl::StatusOr<std::string> FindNonFinite(const BatchSource& next);

  // Copies parameters, optimizer state, averages and buffers to the host.
  absl::Status CopyTo(Snapshot& snapshot);

  // The same without a copy, where the host can read the device's memory: for whoever makes no
  // other step while `snapshot` is read.
  absl::Status LendTo(Snapshot& snapshot);

 private:
  Trainer(Session& session, const v1::JobSpec& spec)
      : session_(session),
        spec_(spec),
        states_(session.plan().micro_batches),
        scalars_(session.plan().scalar_region.bytes) {}

  // Puts the next micro-batch of the step in place.
  absl::Status Load(const BatchSource& next, kernels::StepState& state);
  StepResult ReadResult() const;
  // What the step runs once a micro-batch is in place: `begin` goes with the first, `norm` and
  // `end` with the last.
  Program& PartOf(size_t micro_batch) {
    return parts_[micro_batch == 0][micro_batch + 1 == states_.size()];
  }
  Program MakePart(size_t micro_batch) const;
  // After a step that was not.
  void TakeStepsAgain();
  // Steps that changed the weights.
  int64_t updates() const { return steps_done_ - (loss_scale_ ? loss_scale_->skipped : 0); }

  Session& session_;
  const v1::JobSpec spec_;
  kernels::Kernels copy_, begin_, micro_, norm_, end_;
  Program parts_[2][2];
  std::vector<kernels::StepState> states_;  // per micro-batch, kept until the step is over
  std::vector<char> scalars_;               // the plan's scalar region after a step
  int64_t steps_done_ = 0;
  std::optional<LossScale> loss_scale_;  // with fp16
  std::optional<LoadedWeights> loaded_;  // with fine_tune.from
};

}  // namespace trainyard::engine
