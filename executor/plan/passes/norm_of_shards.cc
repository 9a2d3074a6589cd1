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
  const auto shard = [&](size_t i) { return plan.tensors[plan.of_group[i]].shard.get(); };
  std::vector<size_t> order(plan.trained_of_group);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const ShardOf *x = shard(a), *y = shard(b);
    if (x == nullptr || y == nullptr) return x == nullptr && y != nullptr;
    return (x->count - 1 - x->number) * y->count < (y->count - 1 - y->number) * x->count;
  });
  return order;
}

// Leaves that one rank has made, and the others need.
struct MadeLeaves {
  int64_t rank = 0;
  ElementRange leaves;
};

void ExchangeLeaves(const std::vector<MadeLeaves>& made, Plan& plan) {
  if (plan.host.ranks == 1) return;
  ShardExchange exchange{.before_op = static_cast<int64_t>(plan.norm.size())};
  for (const MadeLeaves& of_rank : made) {
    const ElementRange& leaves = of_rank.leaves;
    const TensorId id = AddAlias("leaves", plan.leaves, leaves.first, leaves.size(), plan);
    plan.tensors[id].made_by = of_rank.rank;
    exchange.tensors.push_back(id);
  }
  plan.norm_exchanges.push_back(std::move(exchange));
}

// The last stage of a pipeline has the losses.
void ExchangeSums(Plan& plan) {
  if (plan.host.stages == 1) return;
  ShardExchange exchange{.before_op = 0};
  for (const TensorId sum : {plan.loss_sum, plan.z_loss_sum, plan.target_count}) {
    if (sum == kNone) continue;
    plan.tensors[sum].made_by = plan.host.ranks - plan.host.in_stage();
    exchange.tensors.push_back(sum);
  }
  plan.norm_exchanges.push_back(std::move(exchange));
}

}  // namespace

void AddNormOfShards(TensorId sum, Plan& plan) {
  ExchangeSums(plan);
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
  std::vector<MadeLeaves> made;
  int64_t end = 0;
  for (const size_t i : OrderOfLeaves(plan)) {
    const ElementRange leaves = {end, end + leaves_of(i)};
    if (leaves.size() == 0) continue;
    end = leaves.end;
    const TensorId parameter = plan.of_group[i];
    const Tensor& tensor = plan.tensors[parameter];
    const int64_t rank = plan.host.HostOf(tensor);
    // Where there is one stage, every rank has what is no shard, and makes the sums itself.
    const bool by_all = !plan.host.Divides(tensor);
    if (!by_all && !made.empty() && made.back().rank == rank &&
        made.back().leaves.end == leaves.first) {
      made.back().leaves.end = leaves.end;
    } else if (!by_all) {
      made.push_back({.rank = rank, .leaves = leaves});
    }
    if (!by_all && rank != plan.host.rank) continue;
    plan.norm.push_back(SquaredNormLeaves{
        .x = gradient_of.at(parameter),
        .leaves = AddAlias("leaves", plan.leaves, leaves.first, leaves.size(), plan),
        .n = own[i]});
  }
  ExchangeLeaves(made, plan);
  plan.norm.push_back(AddLeaves{.leaves = plan.leaves, .sum = sum, .count = count});
}

}  // namespace trainyard::plan
