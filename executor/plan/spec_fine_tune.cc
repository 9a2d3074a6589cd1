// Fine-tuning: where the weights come from, and which of them are trained.

#include "executor/plan/spec_checks.h"
#include "storage/base/status.h"

namespace trainyard::plan {

absl::Status ResolveFineTune(v1::FineTune& fine_tune) {
  const std::string at = "spec.fine_tune.";
  if (!fine_tune.from().empty()) {
    return NotBuilt(at + "from", "beginning with the weights of another model", "leave it out");
  }
  if (fine_tune.has_lora()) return NotBuilt(at + "lora", "low-rank adaptation", "leave it out");
  if (fine_tune.reinitialize_size() > 0) {
    return Invalid(at + "reinitialize", "all weights are drawn without from; leave it out");
  }
  if (fine_tune.ignore_size() > 0) {
    return Invalid(at + "ignore", "there is nothing to ignore without from; leave it out");
  }
  return Invalid("spec.fine_tune", "says nothing; set from or lora, or leave it out");
}

}  // namespace trainyard::plan
