#include "executor/plan/spec/checks.h"
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
  TY_RETURN_IF_ERROR(
      CheckChoice(at + "on_non_finite", training.on_non_finite(), "policy; use HALT or ROLL_BACK"));
  if (training.on_non_finite() != v1::Training::ROLL_BACK) {
    training.set_on_non_finite(v1::Training::HALT);
    if (!training.has_max_rollbacks()) return absl::OkStatus();
    return Invalid(at + "max_rollbacks", "has no use with on_non_finite HALT; use ROLL_BACK");
  }
  if (!training.has_max_rollbacks()) training.set_max_rollbacks(5);
  return CheckRange(at + "max_rollbacks", training.max_rollbacks(), 1, 1000);
}

absl::Status CheckRecompute(const v1::Recompute& recompute) {
  const std::string field = "spec.training.recompute", at = field + ".";
  const int given = recompute.has_activation_bytes() + recompute.has_activation_share() +
                    recompute.has_slot_bytes();
  if (given != 1) {
    return Invalid(field, given == 0 ? "says no budget; " : "says more than one budget; ",
                   "give one of activation_bytes, activation_share and slot_bytes");
  }
  const double share = recompute.activation_share();
  if (recompute.has_activation_share() && !(share > 0 && share < 1)) {
    return Invalid(at + "activation_share", share, " is not in (0, 1); 0.5 halves activations");
  }
  if (recompute.has_activation_bytes()) {
    return CheckAtLeast(at + "activation_bytes", recompute.activation_bytes(), 1);
  }
  return recompute.has_slot_bytes() ? CheckAtLeast(at + "slot_bytes", recompute.slot_bytes(), 1)
                                    : absl::OkStatus();
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
  if (training.has_ema_decay() && !(training.ema_decay() > 0 && training.ema_decay() < 1)) {
    return Invalid(at + "ema_decay", training.ema_decay(), " is not in (0, 1)");
  }
  if (training.ema_warmup() && !training.has_ema_decay()) {
    return Invalid(at + "ema_warmup", "has no use without ema_decay");
  }
  if (!training.has_log_every()) training.set_log_every(1);
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "log_every", training.log_every(), 1));
  TY_RETURN_IF_ERROR(CheckFraction(at + "label_smoothing", training.label_smoothing()));
  if (!(training.z_loss() >= 0 && training.z_loss() <= 1)) {
    return Invalid(at + "z_loss", training.z_loss(), " is not in [0, 1]; PaLM took 1e-4");
  }
  if (training.has_recompute()) TY_RETURN_IF_ERROR(CheckRecompute(training.recompute()));
  return ResolveOnNonFinite(training);
}

}  // namespace trainyard::plan
