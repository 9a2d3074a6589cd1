#include "executor/plan/passes/norm_of_shards.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/passes/fold_replicas.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "kernels/scratch/sizes.h"

namespace trainyard::plan {

namespace {

// Positions in plan.of_group: behind what is whole the shards, in an order in which those of every
// rank lie side by side, however many share them (ShardOf::HostOf).
std::vector<size_t> OrderOfLeaves(const Plan& plan) {
  const auto shard = [&](size_t i) -> const std::optional<ShardOf>& {
    return plan.tensors[plan.of_group[i]].shard;
  };
  std::vector<size_t> order(plan.trained_of_group);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const std::optional<ShardOf>&x = shard(a), &y = shard(b);
    if (!x || !y) return !x && y.has_value();
    return (x->count - 1 - x->number) * y->count < (y->count - 1 - y->number) * x->count;
  });
  return order;
}

// Each of the ranks that share the shards has made the sums of its own.
void ExchangeLeaves(const std::vector<ElementRange>& of_ranks, Plan& plan) {
  if (plan.host.ranks == 1) return;
  ShardExchange exchange{.before_op = static_cast<int64_t>(plan.norm.size())};
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const ElementRange& leaves = of_ranks[rank];
    if (leaves.size() == 0) continue;
    const TensorId id = AddAlias("leaves", plan.leaves, leaves.first, leaves.size(), plan);
    plan.tensors[id].made_by = static_cast<int64_t>(rank);
    exchange.tensors.push_back(id);
  }
  plan.norm_exchanges.push_back(std::move(exchange));
}

}  // namespace

void AddNormOfShards(TensorId sum, Plan& plan) {
  const std::vector<int64_t> own = FoldReplicas(plan);
  const auto leaves_of = [&](size_t i) {
    return kernels::scratch::Ceil(own[i], kernels::kNormLeaf);
  };
  int64_t count = 0;
  for (size_t i = 0; i < own.size(); ++i) count += leaves_of(i);
  plan.leaves = static_cast<TensorId>(plan.tensors.size());
  plan.tensors.push_back({.name = "leaves of the norm",
                          .type = ElementType::kF64,
                          .dims = {count},
                          .kind = TensorKind::kScalar});
  absl::flat_hash_map<TensorId, TensorId> gradient_of;
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    gradient_of[plan.parameters[i]] = plan.gradients[i];
  }
  std::vector<ElementRange> of_ranks(plan.host.ranks);
  int64_t end = 0;
  for (const size_t i : OrderOfLeaves(plan)) {
    const ElementRange leaves = {end, end + leaves_of(i)};
    if (leaves.size() == 0) continue;
    end = leaves.end;
    const TensorId parameter = plan.of_group[i];
    if (const std::optional<ShardOf>& shard = plan.tensors[parameter].shard) {
      ElementRange& of_rank = of_ranks[shard->HostOf(plan.host.ranks)];
      of_rank = {of_rank.size() == 0 ? leaves.first : of_rank.first, leaves.end};
    }
    if (!plan.host.hosts(plan.tensors[parameter])) continue;
    plan.norm.push_back(SquaredNormLeaves{
        .x = gradient_of.at(parameter),
        .leaves = AddAlias("leaves", plan.leaves, leaves.first, leaves.size(), plan),
        .n = own[i]});
  }
  ExchangeLeaves(of_ranks, plan);
  plan.norm.push_back(AddLeaves{.leaves = plan.leaves, .sum = sum, .count = count});
}

}  // namespace trainyard::plan
