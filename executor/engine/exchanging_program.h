#pragma once

#include <functional>

#include "executor/plan/graph/plan.h"
#include "executor/plan/passes/bucket_order.h"
#include "kernels/device.h"

namespace trainyard::engine {

// The kernels of a micro-batch, `micro`, and after the last that touches the gradients of a bucket
// a launch that calls `start` with it. `order` is plan::BucketOrder. Pure.
kernels::Kernels WithStarts(const kernels::Kernels& micro,
                            const std::vector<plan::ReadyBucket>& order,
                            const std::function<void(size_t bucket, kernels::Stream&)>& start);

}  // namespace trainyard::engine
