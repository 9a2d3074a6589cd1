#include "executor/plan/passes/fold_replicas.h"

#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// Rows that some shards have, in the order of the shards.
struct Replicas {
  struct Place {
    TensorId parameter = kNone;
    int64_t at = 0;  // where in it the rows begin, in elements
  };
  std::vector<Place> places;
  std::string whole;
  int64_t rows = 0, cols = 0;
};

// Adds up the gradients at the places of `replicas`.
void AddSum(const Replicas& replicas, const absl::flat_hash_map<TensorId, TensorId>& gradient_of,
            Plan& plan) {
  const int64_t elements = replicas.rows * replicas.cols;
  AddParts sum{.rows = replicas.rows, .cols = replicas.cols};
  ShardExchange exchange{.before_op = static_cast<int64_t>(plan.norm.size())};
  std::vector<TensorId> hosted;
  for (const auto& [parameter, at] : replicas.places) {
    const int64_t rank = plan.host.HostOf(plan.tensors[parameter]);
    if (exchange.ranks.empty() || exchange.ranks.back() != rank) exchange.ranks.push_back(rank);
    if (rank == plan.host.rank) {
      hosted.push_back(AddAlias("gradients", gradient_of.at(parameter), at, elements, plan));
      sum.parts.push_back(hosted.back());
    } else {
      plan.tensors.push_back({.name = absl::StrCat("gradient of ", replicas.whole, " on ", rank),
                              .dims = {elements},
                              .kind = TensorKind::kReceived});
      sum.parts.push_back(static_cast<TensorId>(plan.tensors.size()) - 1);
    }
    plan.tensors[sum.parts.back()].made_by = rank;
  }
  if (hosted.empty()) return;
  if (exchange.ranks.size() > 1) {
    for (const TensorId part : sum.parts) {
      if (plan.tensors[part].kind == TensorKind::kReceived) plan.received.push_back(part);
    }
    exchange.tensors = sum.parts;
    plan.norm_exchanges.push_back(std::move(exchange));
  }
  sum.y = hosted[0];
  plan.norm.push_back(sum);
  for (size_t i = 1; i < hosted.size(); ++i) {
    plan.norm.push_back(Cast{.x = sum.y, .y = hosted[i], .n = elements});
  }
}

}  // namespace

std::vector<int64_t> FoldReplicas(Plan& plan) {
  std::vector<Replicas> runs;
  // By the whole, the rows and the first column: shards that have it have the same columns.
  absl::flat_hash_map<std::tuple<std::string, int64_t, int64_t, int64_t>, size_t> number;
  std::vector<int64_t> own;
  for (size_t i = 0; i < plan.trained_of_group; ++i) {
    const Tensor& parameter = plan.tensors[plan.of_group[i]];
    own.push_back(parameter.elements());
    if (!parameter.shard || parameter.shard->cols.size() > 1) continue;
    const int64_t cols = parameter.elements() / parameter.dims[0];
    const int64_t col = parameter.shard->cols.empty() ? 0 : parameter.shard->cols[0].first;
    int64_t row = 0;
    bool replicated = false;
    for (const Run& run : parameter.shard->rows) {
      const auto [found, first] = number.try_emplace(
          std::tuple(parameter.shard->whole, run.first, run.end, col), runs.size());
      if (first) {
        runs.push_back({.whole = parameter.shard->whole, .rows = run.size(), .cols = cols});
      }
      TY_CHECK(!replicated || !first, parameter.name, ": rows of its own behind those of another");
      Replicas& replicas = runs[found->second];
      replicas.places.push_back({.parameter = plan.of_group[i], .at = row * cols});
      if (!first && !replicated) own.back() = row * cols;
      replicated |= !first;
      row += run.size();
    }
  }
  absl::flat_hash_map<TensorId, TensorId> gradient_of;
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    gradient_of[plan.parameters[i]] = plan.gradients[i];
  }
  for (const Replicas& replicas : runs) {
    if (replicas.places.size() > 1) AddSum(replicas, gradient_of, plan);
  }
  return own;
}

}  // namespace trainyard::plan
