#include "executor/engine/trainer.h"

#include <cmath>
#include <string>

#include "executor/engine/blame.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/initialize.h"
#include "executor/engine/read_tensor.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

absl::Status CheckFinite(const StepResult& result, int64_t step) {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return absl::OkStatus();
  return Blame(Fault::kNumeric,
               absl::OutOfRangeError(absl::StrCat(
                   "step ", step, ": loss is ", result.loss, " and the gradient's norm ",
                   result.grad_norm, " at learning rate ", result.learning_rate,
                   "; a smaller learning rate, a longer warm-up or optimizer.clip_norm may help")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Session& session,
                                                         const v1::JobSpec& spec) {
  std::unique_ptr<Trainer> trainer(new Trainer(session, spec));
  const plan::Plan& plan = session.plan();
  // Optimizer state starts at zero, and kernels that sweep a region read its padding.
  TY_RETURN_IF_ERROR(session.Zero({.offset = 0, .bytes = plan.arena_bytes}));
  TY_ASSIGN_OR_RETURN(trainer->begin_, session.Prepare(plan.begin));
  TY_ASSIGN_OR_RETURN(trainer->micro_, session.Prepare(plan.micro));
  TY_ASSIGN_OR_RETURN(trainer->end_, session.Prepare(plan.end));
  return trainer;
}

absl::Status Trainer::Initialize(int threads) {
  steps_done_ = 0;
  TY_RETURN_IF_ERROR(InitializeModel(session_, spec_.training().seed(), threads));
  return BeginAverages();
}

absl::Status Trainer::BeginAverages() {
  TY_ASSIGN_OR_RETURN(const std::vector<kernels::Kernel> start,
                      session_.Prepare(session_.plan().start));
  session_.Launch(start);
  return session_.Synchronize();
}

absl::Status Trainer::Restore(const Checkpoint& checkpoint) {
  const plan::Plan& plan = session_.plan();
  for (plan::TensorId id : plan.parameters) {
    TY_RETURN_IF_ERROR(ReadTensor(checkpoint.model, "", plan.tensors[id], session_, id));
  }
  for (plan::TensorId id : plan.buffers) {
    TY_RETURN_IF_ERROR(ReadTensor(checkpoint.model, "", plan.tensors[id], session_, id));
  }
  for (size_t kind = 0; kind < plan.optimizer_state.size(); ++kind) {
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      if (plan.optimizer_state[kind][i] == plan::kNone) continue;
      TY_RETURN_IF_ERROR(ReadTensor(checkpoint.optimizer, OptimizerPrefix(plan, kind),
                                    plan.tensors[plan.parameters[i]], session_,
                                    plan.optimizer_state[kind][i]));
    }
  }
  if (!plan.averages.empty() && !checkpoint.ema) {
    return absl::DataLossError(absl::StrCat(checkpoint.uri, ": ", kEmaFile, " is missing"));
  }
  for (size_t i = 0; i < plan.averages.size(); ++i) {
    TY_RETURN_IF_ERROR(ReadTensor(*checkpoint.ema, "", plan.tensors[plan.parameters[i]], session_,
                                  plan.averages[i]));
  }
  steps_done_ = checkpoint.step;
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Trainer::Step(const BatchSource& next) {
  const plan::Plan& plan = session_.plan();
  StepResult result;
  result.learning_rate = plan::LearningRate(spec_.schedule(), steps_done_, plan.total_steps);
  session_.Launch(begin_);
  for (kernels::StepState& state : states_) {
    TY_ASSIGN_OR_BLAME(Fault::kData, const data::Loader::Batch batch, next());
    TY_CHECK(batch.step == steps_done_, "micro-batch of step ", batch.step, " in step ",
             steps_done_);
    state = {.seed = spec_.training().seed(),
             .step = steps_done_,
             .first_sample = batch.first_sample,
             .learning_rate = static_cast<float>(result.learning_rate)};
    session_.Write(plan.state, &state, sizeof(state));
    session_.WriteInputs(plan.input, plan.ids, batch.inputs);
    session_.Write(plan.target, batch.targets, plan.tensors[plan.target].bytes());
    session_.Launch(micro_);
  }
  session_.Launch(end_);

  double loss_sum = 0;
  float grad_norm = 0;
  session_.Read(plan.loss_sum, &loss_sum, sizeof(loss_sum));
  session_.Read(plan.grad_norm, &grad_norm, sizeof(grad_norm));
  TY_RETURN_IF_ERROR(session_.Synchronize());
  result.loss =
      loss_sum / static_cast<double>(plan.micro_batches * plan.micro_batch * plan.rows_per_sample);
  result.grad_norm = grad_norm;
  ++steps_done_;
  TY_RETURN_IF_ERROR(CheckFinite(result, steps_done_));
  return result;
}

absl::Status Trainer::CopyTo(Snapshot& snapshot) {
  const plan::Plan& plan = session_.plan();
  session_.ReadRegion(plan.parameter_region, snapshot.parameters());
  session_.ReadRegion(plan.optimizer_region, snapshot.optimizer());
  session_.ReadRegion(plan.ema_region, snapshot.averages());
  session_.ReadRegion(plan.buffer_region, snapshot.buffers());
  snapshot.SetBatches(steps_done_ * plan.micro_batches);
  return session_.Synchronize();
}

}  // namespace trainyard::engine
