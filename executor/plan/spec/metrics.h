#pragma once

// What evaluation reports (executor/engine/evaluator.h), and which of two values is the better one.

#include <string>
#include <vector>

#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

struct Metric {
  std::string name;
  bool larger_is_better = false;

  // NaN is worse than everything, also than NaN.
  bool Better(double a, double b) const;
};

// What a run of `spec` reports of its held-out split, in the order in which people look at it.
std::vector<Metric> EvaluationMetrics(const v1::JobSpec& spec);

// The metric that a resolved EarlyStopping or BestCheckpoints goes by.
template <typename Policy>
Metric MetricOf(const Policy& policy) {
  return {.name = policy.metric(), .larger_is_better = policy.mode() == v1::Evaluation::MAX};
}

}  // namespace trainyard::plan
