#include "executor/plan/passes/logical_ranks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/optimizer_step.h"
#include "executor/plan/passes/shard_optimizer.h"

namespace trainyard::plan {

std::vector<std::pair<size_t, size_t>> RunsOfChunk(const Plan& plan, int64_t chunk) {
  const Pipeline pipeline = plan.host.pipeline();
  const auto is_of_chunk = [&](size_t i) {
    return pipeline.chunk_of(plan.tensors[plan.parameters[i]].piece) == chunk;
  };
  std::vector<std::pair<size_t, size_t>> runs;
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    if (!is_of_chunk(i)) continue;
    if (runs.empty() || runs.back().second != i) runs.push_back({i, i});
    runs.back().second = i + 1;
  }
  return runs;
}

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
    if (gradients > 0) part.gradients = add("gradients", ElementType::kF32, gradients);
    std::vector<Op> folds = {Fold{.part = part.sums, .total = total.sums, .n = sums}};
    int64_t begin = 0;
    for (auto chunk = plan.chunks.rbegin(); chunk != plan.chunks.rend(); ++chunk) {
      for (const auto& [first, end] : RunsOfChunk(plan, plan.chunks.rend() - chunk - 1)) {
        const int64_t at = RunLength(plan, 0, first), n = RunLength(plan, first, end);
        const auto run = [&](TensorId all) {
          return n == gradients ? all : AddAlias("gradients", all, at, n, plan);
        };
        if (n > 0) {
          folds.push_back(Fold{.part = run(part.gradients), .total = run(total.gradients), .n = n});
        }
      }
      const auto end = static_cast<int64_t>(folds.size());
      chunk->fold = {begin, end};
      begin = end;
    }
    plan.folds.push_back(std::move(folds));
    plan.partial_sums.push_back(part);
    total = part;
  }
}

}  // namespace trainyard::plan
