#pragma once

// From a plan's ops to a device's kernels.

#include <vector>

#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "kernels/device.h"

namespace trainyard::engine {

// The kernels of `ops` in order, bound to the plan's tensors in `arena`, of which those that have
// several places are in those that `of` says. kUnimplemented names the op that the device lacks.
absl::StatusOr<kernels::Kernels> Lower(kernels::Device& device, const plan::Plan& plan, void* arena,
                                       const std::vector<plan::Op>& ops,
                                       const plan::Instance& of = {});

}  // namespace trainyard::engine
