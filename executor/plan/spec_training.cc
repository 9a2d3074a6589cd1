#include "executor/plan/spec_checks.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kMostSteps = 4294967295;  // counters of random draws wrap past it
constexpr int64_t kLargestBatch = int64_t{1} << 24;

absl::Status CheckLength(const v1::Training& training) {
  const std::string at = "spec.training.";
  if (training.steps() != 0 && training.epochs() != 0) {
    return Invalid(at + "epochs", "steps is given as well; give one of the two");
  }
  if (training.epochs() != 0) return CheckPositive(at + "epochs", training.epochs());
  if (training.steps() == 0) return Invalid(at + "steps", "is missing; give steps or epochs");
  return CheckRange(at + "steps", training.steps(), 1, kMostSteps);
}

absl::Status ResolveOnNonFinite(v1::Training& training) {
  const std::string at = "spec.training.";
  if (!v1::Training::OnNonFinite_IsValid(training.on_non_finite())) {
    return Invalid(at + "on_non_finite", static_cast<int>(training.on_non_finite()),
                   " is no policy; use HALT or ROLL_BACK");
  }
  if (training.on_non_finite() != v1::Training::ROLL_BACK) {
    training.set_on_non_finite(v1::Training::HALT);
    if (!training.has_max_rollbacks()) return absl::OkStatus();
    return Invalid(at + "max_rollbacks", "has no use with on_non_finite HALT; use ROLL_BACK");
  }
  if (!training.has_max_rollbacks()) training.set_max_rollbacks(5);
  return CheckRange(at + "max_rollbacks", training.max_rollbacks(), 1, 1000);
}

absl::Status ResolveSgd(v1::Sgd& sgd) {
  const std::string at = "spec.optimizer.sgd.";
  TY_RETURN_IF_ERROR(CheckFraction(at + "momentum", sgd.momentum()));
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "weight_decay", sgd.weight_decay()));
  if (sgd.nesterov()) return NotBuilt(at + "nesterov", "it", "leave it out");
  return absl::OkStatus();
}

absl::Status ResolveAdamW(v1::AdamW& adamw) {
  const std::string at = "spec.optimizer.adamw.";
  if (!adamw.has_beta1()) adamw.set_beta1(0.9);
  if (!adamw.has_beta2()) adamw.set_beta2(0.999);
  if (!adamw.has_epsilon()) adamw.set_epsilon(1e-8);
  if (!adamw.has_weight_decay()) adamw.set_weight_decay(0.01);
  TY_RETURN_IF_ERROR(CheckFraction(at + "beta1", adamw.beta1()));
  TY_RETURN_IF_ERROR(CheckFraction(at + "beta2", adamw.beta2()));
  TY_RETURN_IF_ERROR(CheckPositive(at + "epsilon", adamw.epsilon()));
  if (static_cast<float>(adamw.epsilon()) == 0) {
    return Invalid(at + "epsilon", adamw.epsilon(), " is 0 in single precision; try 1e-8");
  }
  return CheckNotNegative(at + "weight_decay", adamw.weight_decay());
}

}  // namespace

absl::Status ResolveTraining(v1::Training& training, int64_t logical_ranks) {
  const std::string at = "spec.training.";
  TY_RETURN_IF_ERROR(CheckLength(training));
  const int64_t batch = training.batch_size();
  TY_RETURN_IF_ERROR(CheckRange(at + "batch_size", batch, 1, kLargestBatch));
  if (batch % logical_ranks != 0) {
    return Invalid(at + "batch_size", batch, " is not a multiple of the ", logical_ranks,
                   " logical ranks; ", TryMultiples(batch, logical_ranks));
  }
  const int64_t share = batch / logical_ranks;
  if (!training.has_micro_batch_size()) training.set_micro_batch_size(static_cast<int32_t>(share));
  const int64_t micro = training.micro_batch_size();
  TY_RETURN_IF_ERROR(CheckRange(at + "micro_batch_size", micro, 1, kLargestBatch));
  if (share % micro != 0) {
    const std::string by = logical_ranks == 1
                               ? absl::StrCat("micro_batch_size ", micro)
                               : absl::StrCat("micro_batch_size ", micro, " times the ",
                                              logical_ranks, " logical ranks");
    return Invalid(at + "batch_size", batch, " is not a multiple of ", by, "; ",
                   TryMultiples(batch, micro * logical_ranks));
  }
  if (!training.has_seed()) training.set_seed(1337);
  if (!training.has_log_every()) training.set_log_every(1);
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "log_every", training.log_every(), 1));
  TY_RETURN_IF_ERROR(CheckFraction(at + "label_smoothing", training.label_smoothing()));
  if (!(training.z_loss() >= 0 && training.z_loss() <= 1)) {
    return Invalid(at + "z_loss", training.z_loss(), " is not in [0, 1]; PaLM took 1e-4");
  }
  return ResolveOnNonFinite(training);
}

absl::Status ResolveOptimizer(v1::Optimizer& optimizer) {
  if (optimizer.has_clip_norm()) {
    TY_RETURN_IF_ERROR(CheckPositive("spec.optimizer.clip_norm", optimizer.clip_norm()));
  }
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kSgd:
      return ResolveSgd(*optimizer.mutable_sgd());
    case v1::Optimizer::kAdamw:
      return ResolveAdamW(*optimizer.mutable_adamw());
    case v1::Optimizer::kLamb:
      return NotBuilt("spec.optimizer.lamb", "it", "use adamw");
    case v1::Optimizer::kMuon:
      return NotBuilt("spec.optimizer.muon", "it", "use adamw");
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return Invalid("spec.optimizer", "there is none; set sgd or adamw");
}

absl::Status ResolveSchedule(v1::Schedule& schedule, int64_t steps) {
  const std::string at = "spec.schedule.";
  if (!schedule.has_learning_rate()) schedule.set_learning_rate(1e-3);
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "learning_rate", schedule.learning_rate()));
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "warmup_steps", schedule.warmup_steps(), 0));
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "decay_steps", schedule.decay_steps(), 0));
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "min_learning_rate", schedule.min_learning_rate()));
  switch (schedule.shape()) {
    case v1::Schedule::SHAPE_UNSPECIFIED:
      schedule.set_shape(v1::Schedule::CONSTANT);
      break;
    case v1::Schedule::CONSTANT:
    case v1::Schedule::LINEAR:
    case v1::Schedule::COSINE:
      break;
    case v1::Schedule::STEP:
    case v1::Schedule::POLYNOMIAL:
    case v1::Schedule::WARMUP_STABLE_DECAY:
      return NotBuilt(at + "shape", v1::Schedule::Shape_Name(schedule.shape()),
                      "use CONSTANT, LINEAR or COSINE");
    default:
      return Invalid(at + "shape", static_cast<int>(schedule.shape()),
                     " is no shape; use CONSTANT, LINEAR or COSINE");
  }
  if (schedule.shape() == v1::Schedule::CONSTANT) {
    const std::string why =
        "has no use with the shape CONSTANT; use LINEAR or COSINE, or leave it out";
    if (schedule.min_learning_rate() != 0) return Invalid(at + "min_learning_rate", why);
    if (schedule.decay_steps() != 0) return Invalid(at + "decay_steps", why);
    return absl::OkStatus();
  }
  if (schedule.min_learning_rate() > schedule.learning_rate()) {
    return Invalid(at + "min_learning_rate", schedule.min_learning_rate(),
                   " is above learning_rate ", schedule.learning_rate());
  }
  const int64_t decay = schedule.decay_steps() > 0 ? schedule.decay_steps() : steps;
  if (decay > 0 && schedule.warmup_steps() >= decay) {
    return Invalid(at + "warmup_steps", schedule.warmup_steps(), " leaves nothing of the ", decay,
                   " steps to decay over; make it smaller");
  }
  return absl::OkStatus();
}

}  // namespace trainyard::plan
