#include "executor/plan/passes/bucket_order.h"

#include <algorithm>
#include <variant>

#include "executor/plan/passes/optimizer_step.h"

namespace trainyard::plan {

std::vector<ReadyBucket> BucketOrder(const Plan& plan) {
  std::vector<int64_t> last(plan.tensors.size(), 0);  // an op that touches the tensor
  for (size_t i = 0; i < plan.micro.size(); ++i) {
    const auto touch = [&](TensorId id, Access) { last[id] = static_cast<int64_t>(i); };
    VisitOperands(plan.micro[i], touch);
  }
  std::vector<ReadyBucket> order(plan.buckets.size());
  for (size_t b = 0; b < order.size(); ++b) order[b].bucket = b;
  int64_t begin = 0;
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    const ElementRange elements = {begin, begin + RunLength(plan, i, i + 1)};
    begin = elements.end;
    for (ReadyBucket& ready : order) {
      if (Common(plan.buckets[ready.bucket].elements, elements).size() == 0) continue;
      ready.after_op = std::max(ready.after_op, last[plan.gradients[i]]);
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const ReadyBucket& a, const ReadyBucket& b) {
    return a.after_op < b.after_op;
  });
  int64_t next = static_cast<int64_t>(plan.micro.size()) - 1;  // ready after the bucket at hand
  for (size_t b = order.size(); b-- > 0;) {
    if (b + 1 < order.size() && order[b].after_op < order[b + 1].after_op) {
      next = order[b + 1].after_op;
    }
    order[b].free_after_op = next;
  }
  return order;
}

std::vector<AwaitedBucket> AwaitedOrder(const Plan& plan) {
  if (plan.parameters_sharded) return {};
  const auto end = static_cast<int64_t>(plan.micro.size());
  std::vector<AwaitedBucket> order(plan.buckets.size());
  for (size_t b = 0; b < order.size(); ++b) order[b] = {.bucket = b, .before_op = end};
  for (int64_t i = end - 1; i >= 0; --i) {
    // By where a tensor lies: it may be part of a parameter, or lie across several.
    const auto touch = [&](TensorId id, Access) {
      const int64_t at = plan.offsets[id] - plan.parameter_region.offset;
      const int64_t kSize = SizeOf(ElementType::kF32);
      const ElementRange elements = {at / kSize, (at + plan.tensors[id].bytes()) / kSize};
      if (at < 0 || at >= plan.parameter_region.bytes) return;
      for (AwaitedBucket& awaited : order) {
        const ElementRange& bucket = plan.buckets[awaited.bucket].elements;
        if (Common(bucket, elements).size() > 0) awaited.before_op = i;
      }
    };
    VisitOperands(plan.micro[i], touch);
  }
  std::stable_sort(order.begin(), order.end(), [](const AwaitedBucket& a, const AwaitedBucket& b) {
    return a.before_op < b.before_op;
  });
  return order;
}

}  // namespace trainyard::plan
