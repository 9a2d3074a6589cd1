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
  return CheckAtLeast(at + "log_every", training.log_every(), 1);
}

}  // namespace trainyard::plan
