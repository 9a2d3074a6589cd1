// What goes by a metric of the held-out split: early stopping and the best checkpoints.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/metrics.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"

namespace trainyard::plan {

namespace {

// Fills metric and mode of an EarlyStopping or BestCheckpoints at `at`.
template <typename Policy>
absl::Status ResolveMetric(const std::string& at, const v1::JobSpec& spec, Policy& policy) {
  if (spec.evaluation().every_steps() == 0) {
    return Invalid(at,
                   "goes by evaluations, of which there are none before the end; set "
                   "spec.evaluation.every_steps");
  }
  const std::vector<Metric> metrics = EvaluationMetrics(spec);
  if (policy.metric().empty()) policy.set_metric("loss");
  const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const Metric& metric) {
    return metric.name == policy.metric();
  });
  if (found == metrics.end()) {
    std::vector<std::string> names;
    for (const Metric& metric : metrics) names.push_back(metric.name);
    return Invalid(at + ".metric", "evaluation of this job reports no '", policy.metric(), "'",
                   DidYouMean(policy.metric(), names), "; it reports ", absl::StrJoin(names, ", "));
  }
  TY_RETURN_IF_ERROR(CheckChoice(at + ".mode", policy.mode(), "mode; use MIN or MAX"));
  if (policy.mode() == v1::Evaluation::MODE_UNSPECIFIED) {
    policy.set_mode(found->larger_is_better ? v1::Evaluation::MAX : v1::Evaluation::MIN);
  }
  return absl::OkStatus();
}

absl::Status ResolveEarlyStopping(const v1::JobSpec& spec, v1::EarlyStopping& stopping) {
  const std::string at = "spec.evaluation.early_stopping";
  TY_RETURN_IF_ERROR(ResolveMetric(at, spec, stopping));
  if (!stopping.has_patience()) stopping.set_patience(3);
  TY_RETURN_IF_ERROR(CheckAtLeast(at + ".patience", stopping.patience(), 1));
  return CheckNotNegative(at + ".min_delta", stopping.min_delta());
}

absl::Status ResolveBest(const v1::JobSpec& spec, v1::BestCheckpoints& best) {
  const std::string at = "spec.checkpoint.best";
  TY_RETURN_IF_ERROR(ResolveMetric(at, spec, best));
  if (!best.has_keep()) best.set_keep(1);
  return CheckRange(at + ".keep", best.keep(), 1, 100);
}

}  // namespace

bool Metric::Better(double a, double b) const {
  if (std::isnan(a) || std::isnan(b)) return !std::isnan(a);
  return larger_is_better ? a > b : a < b;
}

std::vector<Metric> EvaluationMetrics(const v1::JobSpec& spec) {
  std::vector<Metric> metrics = {{"loss", false}, {"accuracy", true}};
  if (ContextOf(spec.model()) > 0) metrics.push_back({"perplexity", false});
  // A masked model is asked for some tokens alone: their bytes are no text.
  if (spec.data().has_text() && !WindowingOf(spec.model()).masked()) {
    metrics.push_back({"bits_per_byte", false});
  }
  if (spec.model().has_dlrm()) metrics.push_back({"auc", true});
  return metrics;
}

absl::Status ResolveMetrics(v1::JobSpec& spec) {
  if (spec.evaluation().has_early_stopping()) {
    TY_RETURN_IF_ERROR(
        ResolveEarlyStopping(spec, *spec.mutable_evaluation()->mutable_early_stopping()));
  }
  if (!spec.checkpoint().has_best()) return absl::OkStatus();
  return ResolveBest(spec, *spec.mutable_checkpoint()->mutable_best());
}

}  // namespace trainyard::plan
