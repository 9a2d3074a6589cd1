#pragma once

// Trains: one optimizer step after the other.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/data/loader.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "executor/engine/session.h"
#include "kernels/step_state.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// What a step did.
struct StepResult {
  double loss = 0;  // mean over the rows of the global batch
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping
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

  // Step 0: draws the parameters from the seed.
  absl::Status Initialize(int threads);

  // The moving averages, if there are some, become the parameters as they are. Part of Initialize;
  // for whoever writes other parameters into the session after it.
  absl::Status BeginAverages();

  // The state of `checkpoint`, read straight into the arena; kDataLoss when a tensor does not fit.
  absl::Status Restore(const Checkpoint& checkpoint);

  int64_t steps_done() const { return steps_done_; }

  // One step. A loss or gradient norm that is not finite is blamed on kNumeric and names the step;
  // the state is then worthless.
  absl::StatusOr<StepResult> Step(const BatchSource& next);

  // Copies parameters, optimizer state, averages and buffers to the host.
  absl::Status CopyTo(Snapshot& snapshot);

 private:
  Trainer(Session& session, const v1::JobSpec& spec)
      : session_(session), spec_(spec), states_(session.plan().micro_batches) {}

  Session& session_;
  const v1::JobSpec spec_;
  std::vector<kernels::Kernel> begin_, micro_, end_;
  std::vector<kernels::StepState> states_;  // per micro-batch, kept until the step is over
  int64_t steps_done_ = 0;
};

}  // namespace trainyard::engine
