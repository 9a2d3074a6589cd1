#pragma once

#include <functional>

#include "executor/plan/graph/plan.h"
#include "executor/plan/passes/bucket_order.h"
#include "kernels/device.h"

namespace trainyard::engine {

// What is called with a bucket while the kernels of a micro-batch are launched.
using OnBucket = std::function<void(size_t bucket, kernels::Stream&)>;

// The kernels of a micro-batch, `micro`, of which the last that touches the gradients of a bucket
// then calls `start` with it, and the one behind which nothing runs before the bucket is exchanged
// `await`. As many, in the same order. `order` is plan::BucketOrder. Pure.
kernels::Kernels WithStarts(const kernels::Kernels& micro,
                            const std::vector<plan::ReadyBucket>& order, const OnBucket& start,
                            const OnBucket& await = nullptr);

}  // namespace trainyard::engine
