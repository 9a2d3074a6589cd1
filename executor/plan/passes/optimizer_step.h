#pragma once

// The end of a training step: norm, clip, optimizer, moving average.

#include <cstddef>
#include <vector>

#include "executor/plan/graph/plan.h"
#include "executor/plan/passes/parameter_rules.h"

namespace trainyard::plan {

// How the parameters lie in the arena: those with a gradient of their own first, equal rules side
// by side and of these those whose gradient is of 16 bits first, then those with a copy; then
// tables whose gradient is kept by row; then frozen ones.
struct TrainedParameters {
  std::vector<ParameterRule> rules;  // by position in Plan::parameters
  size_t dense = 0;                  // [0, dense) have a gradient of their own
  size_t trained = 0;                // [dense, trained) are kept by row
};

// Elements from the start of parameter `first` to the start of parameter `end`, padding included.
// The same for gradients, optimizer state and averages.
int64_t RunLength(const Plan& plan, size_t first, size_t end);

// Appends what makes the copies of parameters [first, end) up to date.
void AppendCopies(size_t first, size_t end, const Plan& plan, std::vector<Op>& ops);

// Appends to plan.norm and plan.end, and to plan.start what begins the averages. Takes copies,
// gradients, state and averages as they are in `plan`; adds the scratch of Muon's matrices to
// plan.tensors as activations. `sum` (f64) is a scalar.
void AppendOptimizer(const v1::JobSpec& spec, const TrainedParameters& parameters, TensorId sum,
                     Plan& plan);

}  // namespace trainyard::plan
