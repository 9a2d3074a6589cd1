#pragma once

// From a plan's ops to a device's kernels.

#include <vector>

#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "kernels/device.h"

namespace trainyard::engine {

// The kernels of `ops` in order, bound to the plan's tensors in `arena`: what they do to partial
// sum 0 (plan::Plan::partial_sums) is done to number `partial`, and what they do to the first
// micro-batch in flight to number `flight`. kUnimplemented names the op that the device lacks.
absl::StatusOr<kernels::Kernels> Lower(kernels::Device& device, const plan::Plan& plan, void* arena,
                                       const std::vector<plan::Op>& ops, int64_t partial = 0,
                                       int64_t flight = 0);

}  // namespace trainyard::engine
