// Fine-tuning: where the weights come from, and which of them are trained.

#include "executor/plan/spec_checks.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kMostRank = 1024;

absl::Status ResolveLora(v1::Lora& lora) {
  const std::string at = "spec.fine_tune.lora.";
  TY_RETURN_IF_ERROR(CheckRange(at + "rank", lora.rank(), 1, kMostRank));
  if (!lora.has_alpha()) lora.set_alpha(lora.rank());
  TY_RETURN_IF_ERROR(CheckPositive(at + "alpha", lora.alpha()));
  for (int i = 0; i < lora.targets_size(); ++i) {
    if (lora.targets(i).empty()) return Invalid(absl::StrCat(at, "targets[", i, "]"), "is empty");
  }
  for (int i = 0; i < lora.also_train_size(); ++i) {
    if (!lora.also_train(i).empty()) continue;
    return Invalid(absl::StrCat(at, "also_train[", i, "]"), "is empty");
  }
  return CheckFraction(at + "dropout", lora.dropout());
}

}  // namespace

absl::Status ResolveFineTune(v1::FineTune& fine_tune) {
  const std::string at = "spec.fine_tune.";
  if (!fine_tune.from().empty()) {
    return NotBuilt(at + "from", "beginning with the weights of another model", "leave it out");
  }
  if (fine_tune.has_lora()) TY_RETURN_IF_ERROR(ResolveLora(*fine_tune.mutable_lora()));
  if (fine_tune.reinitialize_size() > 0) {
    return Invalid(at + "reinitialize", "all weights are drawn without from; leave it out");
  }
  if (fine_tune.ignore_size() > 0) {
    return Invalid(at + "ignore", "there is nothing to ignore without from; leave it out");
  }
  if (fine_tune.has_lora()) return absl::OkStatus();
  return Invalid("spec.fine_tune", "says nothing; set from or lora, or leave it out");
}

}  // namespace trainyard::plan
