// Where and how a job runs: precision, resources, evaluation, checkpoints, retries.

#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

absl::Status ResolveLossScale(v1::LossScale& loss_scale) {
  const std::string at = "spec.precision.loss_scale.";
  if (!loss_scale.has_initial()) loss_scale.set_initial(65536);
  if (!loss_scale.has_growth_interval()) loss_scale.set_growth_interval(2000);
  if (!(loss_scale.initial() >= 0x1p-16 && loss_scale.initial() <= 0x1p64)) {
    return Invalid(at + "initial", loss_scale.initial(), " is not in [2^-16, 2^64]; try 65536");
  }
  return CheckAtLeast(at + "growth_interval", loss_scale.growth_interval(), 1);
}

}  // namespace

absl::Status ResolvePrecision(v1::Precision& precision) {
  if (precision.compute() == v1::Precision::COMPUTE_UNSPECIFIED) {
    precision.set_compute(v1::Precision::FP32);
  }
  TY_RETURN_IF_ERROR(CheckChoice("spec.precision.compute", precision.compute(),
                                 "precision; use FP32, BF16 or FP16"));
  if (precision.compute() == v1::Precision::FP16) {
    return ResolveLossScale(*precision.mutable_loss_scale());
  }
  if (!precision.has_loss_scale()) return absl::OkStatus();
  return Invalid("spec.precision.loss_scale", "has no use with ",
                 v1::Precision::Compute_Name(precision.compute()), "; use FP16 or leave it out");
}

absl::Status ResolveResources(v1::Resources& resources, const v1::Parallel& parallel) {
  const std::string at = "spec.resources.";
  if (!resources.has_min_slots()) {
    // One group of ranks, unless that is more than there can be, which ResolveParallel refuses.
    const int64_t most = resources.has_max_slots() ? resources.max_slots() : kMostSlots;
    const int64_t group = RanksInGroup(parallel);
    resources.set_min_slots(group <= most ? static_cast<int32_t>(group) : 1);
  }
  if (!resources.has_max_slots()) resources.set_max_slots(resources.min_slots());
  TY_RETURN_IF_ERROR(CheckRange(at + "min_slots", resources.min_slots(), 1, kMostSlots));
  TY_RETURN_IF_ERROR(CheckRange(at + "max_slots", resources.max_slots(), 1, kMostSlots));
  if (resources.max_slots() < resources.min_slots()) {
    return Invalid(at + "max_slots", resources.max_slots(), " is less than min_slots ",
                   resources.min_slots());
  }
  return CheckChoice(at + "device", resources.device(), "device; use CPU or CUDA, or leave it out");
}

absl::Status ResolveEvaluation(v1::Evaluation& evaluation, bool held_out, int64_t micro_batch) {
  const std::string at = "spec.evaluation.";
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "every_steps", evaluation.every_steps(), 0));
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "max_samples", evaluation.max_samples(), 0));
  if (!evaluation.has_at_end()) evaluation.set_at_end(held_out);
  if (!held_out && (evaluation.every_steps() > 0 || evaluation.at_end())) {
    return Invalid(at + (evaluation.at_end() ? "at_end" : "every_steps"),
                   "the data has no held-out split to evaluate on; set one in spec.data");
  }
  if (!evaluation.has_batch_size()) evaluation.set_batch_size(static_cast<int32_t>(micro_batch));
  return CheckRange(at + "batch_size", evaluation.batch_size(), 1, int64_t{1} << 24);
}

absl::Status ResolveCheckpoint(v1::CheckpointPolicy& checkpoint) {
  const std::string at = "spec.checkpoint.";
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "every_steps", checkpoint.every_steps(), 0));
  if (!checkpoint.has_keep()) checkpoint.set_keep(2);
  TY_RETURN_IF_ERROR(CheckRange(at + "keep", checkpoint.keep(), 2, 1000000));
  return absl::OkStatus();
}

absl::Status ResolveRetry(v1::RetryPolicy& retry) {
  const std::string at = "spec.retry.";
  if (!retry.has_max_restarts()) retry.set_max_restarts(5);
  if (!retry.has_backoff_seconds()) retry.set_backoff_seconds(1);
  TY_RETURN_IF_ERROR(CheckRange(at + "max_restarts", retry.max_restarts(), 0, 1000));
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "backoff_seconds", retry.backoff_seconds()));
  if (retry.backoff_seconds() > 300) {
    return Invalid(at + "backoff_seconds", retry.backoff_seconds(), " is more than 300");
  }
  return absl::OkStatus();
}

}  // namespace trainyard::plan
