#include "executor/engine/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "executor/engine/blame.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/initialize.h"
#include "executor/engine/load_weights.h"
#include "executor/engine/non_finite.h"
#include "executor/engine/restore_tensors.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// A loss that overflows fp16 in the forward pass does so whatever it is scaled by.
constexpr float kLowestLossScale = 0x1p-24f;

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Session& session,
                                                         const v1::JobSpec& spec) {
  std::unique_ptr<Trainer> trainer(new Trainer(session, spec));
  const plan::Plan& plan = session.plan();
  // Optimizer state starts at zero, and kernels that sweep a region read its padding.
  TY_RETURN_IF_ERROR(session.Zero({.offset = 0, .bytes = plan.arena_bytes}));
  TY_ASSIGN_OR_RETURN(trainer->copy_, session.Prepare(plan.copy));
  TY_ASSIGN_OR_RETURN(trainer->begin_, session.Prepare(plan.begin));
  TY_ASSIGN_OR_RETURN(trainer->micro_, session.Prepare(plan.micro));
  TY_ASSIGN_OR_RETURN(trainer->norm_, session.Prepare(plan.norm));
  TY_ASSIGN_OR_RETURN(trainer->end_, session.Prepare(plan.end));
  for (size_t i = 0; i < trainer->states_.size(); ++i) {
    Program& part = trainer->PartOf(i);
    if (part.empty()) part = trainer->MakePart(i);
  }
  return trainer;
}

Program Trainer::MakePart(size_t micro_batch) const {
  kernels::Kernels kernels;
  const auto append = [&](const kernels::Kernels& more) {
    kernels.insert(kernels.end(), more.begin(), more.end());
  };
  if (micro_batch == 0) append(begin_);
  append(micro_);
  if (micro_batch + 1 == states_.size()) append(norm_), append(end_);
  return Program(std::move(kernels));
}

absl::Status Trainer::Initialize(int threads) {
  steps_done_ = 0;
  loss_scale_.reset();
  if (session_.plan().loss_scaling) {
    loss_scale_ = {.scale = static_cast<float>(spec_.precision().loss_scale().initial())};
  }
  TY_RETURN_IF_ERROR(session_.Zero(session_.plan().optimizer_region));
  if (spec_.fine_tune().from().empty()) {
    TY_RETURN_IF_ERROR(InitializeModel(session_, spec_.training().seed(), threads));
  } else {
    TY_ASSIGN_OR_RETURN(loaded_, LoadWeights(session_, spec_, threads));
  }
  return TakeParameters();
}

absl::Status Trainer::TakeParameters() {
  const plan::Plan& plan = session_.plan();
  TY_RETURN_IF_ERROR(session_.Zero(plan.ema_region));  // from 0 they become the weights to the bit
  TY_ASSIGN_OR_RETURN(const kernels::Kernels start, session_.Prepare(plan.start));
  session_.Launch(copy_);
  session_.Launch(start);
  return session_.Synchronize();
}

absl::Status Trainer::Restore(const Checkpoint& checkpoint) {
  TY_RETURN_IF_ERROR(RestoreTensors(checkpoint, session_));
  if (session_.plan().loss_scaling && !checkpoint.run.loss_scale) {
    return absl::DataLossError(absl::StrCat(checkpoint.uri, "/", kStateFile, ": no loss_scale"));
  }
  steps_done_ = checkpoint.step;
  loss_scale_ = checkpoint.run.loss_scale;
  session_.Launch(copy_);
  return absl::OkStatus();
}

absl::Status Trainer::Load(const BatchSource& next, kernels::StepState& state) {
  const plan::Plan& plan = session_.plan();
  const absl::StatusOr<data::Loader::Batch> loaded = next();
  if (!loaded.ok()) return BlameData(loaded.status());
  const data::Loader::Batch& batch = *loaded;
  TY_CHECK(batch.step == steps_done_, "micro-batch of step ", batch.step, " in step ", steps_done_);
  const double rate = plan::LearningRate(spec_.schedule(), steps_done_, plan.total_steps);
  state = {.seed = spec_.training().seed(),
           .step = steps_done_,
           .first_sample = batch.first_sample,
           .learning_rate = static_cast<float>(rate),
           .loss_scale = loss_scale_ ? loss_scale_->scale : 1,
           .updates = updates()};
  session_.Write(plan.state, &state, sizeof(state));
  session_.WriteInputs(plan.input, plan.ids, batch.inputs);
  session_.Write(plan.target, batch.targets, plan.tensors[plan.target].bytes());
  return absl::OkStatus();
}

StepResult Trainer::ReadResult() const {
  const plan::Plan& plan = session_.plan();
  const auto scalar = [&](plan::TensorId id, auto value) {
    const int64_t at = plan.offsets[id] - plan.scalar_region.offset;
    memcpy(&value, scalars_.data() + at, sizeof(value));
    return static_cast<double>(value);
  };
  const double targets = std::max(1.0, scalar(plan.target_count, double{}));
  StepResult result;
  result.loss = scalar(plan.loss_sum, double{}) / targets;
  if (plan.z_loss_sum != plan::kNone) {
    result.z_loss = scalar(plan.z_loss_sum, double{}) / targets;
  }
  result.grad_norm = scalar(plan.grad_norm, float{});
  result.learning_rate = plan::LearningRate(spec_.schedule(), steps_done_, plan.total_steps);
  result.finite = !std::isnan(scalar(plan.grad_scale, float{}));
  return result;
}

void Trainer::TakeStepsAgain() {
  const float scale = 0;
  session_.Write(session_.plan().grad_scale, &scale, sizeof(scale));
}

absl::StatusOr<StepResult> Trainer::Step(const BatchSource& next) {
  for (size_t i = 0; i < states_.size(); ++i) {
    TY_RETURN_IF_ERROR(Load(next, states_[i]));
    TY_RETURN_IF_ERROR(session_.Run(PartOf(i)));
  }
  session_.ReadRegion(session_.plan().scalar_region, scalars_.data());
  TY_RETURN_IF_ERROR(session_.Synchronize());
  StepResult result = ReadResult();
  if (loss_scale_) {
    const LossScale after =
        AfterStep(*loss_scale_, result.finite, spec_.precision().loss_scale().growth_interval());
    result.skipped = !result.finite && after.scale >= kLowestLossScale;
    if (result.finite || result.skipped) loss_scale_ = after;
  }
  if (!result.finite) TakeStepsAgain();
  if (result.finite || result.skipped) ++steps_done_;
  return result;
}

absl::StatusOr<std::string> Trainer::FindNonFinite(const BatchSource& next) {
  const plan::Plan& plan = session_.plan();
  NonFiniteSearch search(session_);
  const std::string before =
      absl::StrCat("as the update of step ", steps_done_, " left it, parameter");
  for (const plan::TensorId id : plan.parameters) TY_RETURN_IF_ERROR(search.Look(id, before));
  // Each micro-batch writes its own rows: those of the pass before may hold what it failed for.
  if (plan.row_gradient != plan::kNone) {
    TY_RETURN_IF_ERROR(session_.Zero({.offset = plan.offsets[plan.row_gradient],
                                      .bytes = plan.tensors[plan.row_gradient].bytes()}));
  }
  TY_RETURN_IF_ERROR(search.Run(plan.begin, begin_, "begin of the step"));
  for (size_t i = 0; i < states_.size(); ++i) {
    const std::string where = absl::StrCat("micro-batch ", i + 1, " of ", states_.size());
    TY_RETURN_IF_ERROR(Load(next, states_[i]));
    TY_RETURN_IF_ERROR(search.Look(plan.input, absl::StrCat("the data of ", where, ":")));
    TY_RETURN_IF_ERROR(search.Run(plan.micro, micro_, where));
  }
  TY_RETURN_IF_ERROR(search.Run(plan.norm, norm_, "norm of the gradient"));
  TakeStepsAgain();  // the search may have come as far as the norm
  return search.found();
}

absl::Status Trainer::CopyTo(Snapshot& snapshot) {
  const plan::Plan& plan = session_.plan();
  session_.ReadRegion(plan.parameter_region, snapshot.parameters());
  session_.ReadRegion(plan.optimizer_region, snapshot.optimizer());
  session_.ReadRegion(plan.ema_region, snapshot.averages());
  session_.ReadRegion(plan.buffer_region, snapshot.buffers());
  snapshot.SetBatches(updates() * plan.micro_batches);
  return session_.Synchronize();
}

absl::Status Trainer::LendTo(Snapshot& snapshot) {
  const plan::Plan& plan = session_.plan();
  const Snapshot::Places places = {.parameters = session_.HostView(plan.parameter_region),
                                   .optimizer = session_.HostView(plan.optimizer_region),
                                   .averages = session_.HostView(plan.ema_region),
                                   .buffers = session_.HostView(plan.buffer_region)};
  if (places.parameters == nullptr) return CopyTo(snapshot);
  snapshot.Borrow(places);
  snapshot.SetBatches(updates() * plan.micro_batches);
  return session_.Synchronize();
}

}  // namespace trainyard::engine
