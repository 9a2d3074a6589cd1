#include "executor/plan/passes/logical_ranks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/optimizer_step.h"

namespace trainyard::plan {

void AddFolds(int64_t ranks, size_t dense, Plan& plan) {
  if (plan.gradients_sharded) return;  // no rank has sums of its own
  const int64_t places = MostSums(plan.logical_ranks, ranks);
  if (places == 1) return;
  const int64_t gradients = RunLength(plan, 0, dense);
  int64_t sums = 0;
  for (const TensorId sum : {plan.loss_sum, plan.z_loss_sum, plan.target_count}) {
    if (sum != kNone) sums += kAlignment / SizeOf(ElementType::kF64);
  }
  // Where tables that are kept by row are all that is trained, a sum is one of losses.
  PartialSum total{.sums = plan.loss_sum,
                   .gradients = plan.gradients.empty() ? kNone : plan.gradients[0]};
  for (int64_t p = 1; p < places; ++p) {
    const auto add = [&](const std::string& what, ElementType type, int64_t n) {
      plan.tensors.push_back({.name = absl::StrCat("partial sum ", p, " of ", what),
                              .type = type,
                              .dims = {n},
                              .kind = TensorKind::kPartialSum});
      return static_cast<TensorId>(plan.tensors.size()) - 1;
    };
    PartialSum part = {.sums = add("losses", ElementType::kF64, sums), .gradients = kNone};
    plan.folds.push_back({Fold{.part = part.sums, .total = total.sums, .n = sums}});
    if (gradients > 0) {
      part.gradients = add("gradients", ElementType::kF32, gradients);
      plan.folds.back().push_back(
          Fold{.part = part.gradients, .total = total.gradients, .n = gradients});
    }
    plan.partial_sums.push_back(part);
    total = part;
  }
}

}  // namespace trainyard::plan
