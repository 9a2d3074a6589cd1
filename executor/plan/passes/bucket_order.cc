#include "executor/plan/passes/bucket_order.h"

#include <algorithm>
#include <variant>

#include "executor/plan/passes/optimizer_step.h"

namespace trainyard::plan {

std::vector<ReadyBucket> BucketOrder(const Plan& plan) {
  std::vector<int64_t> last(plan.tensors.size(), 0);  // an op that touches the tensor
  for (size_t i = 0; i < plan.micro.size(); ++i) {
    Op op = plan.micro[i];  // VisitOperands hands out references
    const auto touch = [&](TensorId id, Access) { last[id] = static_cast<int64_t>(i); };
    std::visit([&](auto& o) { VisitOperands(o, touch); }, op);
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
  return order;
}

}  // namespace trainyard::plan
