#include "executor/plan/passes/fold_replicas.h"

#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "storage/base/status.h"

namespace trainyard::plan {

std::vector<int64_t> FoldReplicas(size_t dense, Plan& plan) {
  // The gradients of each run of rows, by the shards that have it.
  struct Replicas {
    std::vector<std::pair<TensorId, int64_t>> places;  // and where in them, in elements
    int64_t rows = 0, cols = 0;
  };
  std::vector<Replicas> runs;
  // By the whole, the rows and the first column: shards that have it have the same columns.
  absl::flat_hash_map<std::tuple<std::string, int64_t, int64_t, int64_t>, size_t> number;
  std::vector<int64_t> own;
  for (size_t i = 0; i < dense; ++i) {
    const Tensor& parameter = plan.tensors[plan.parameters[i]];
    own.push_back(parameter.elements());
    if (!parameter.shard || parameter.shard->cols.size() > 1) continue;
    const int64_t cols = parameter.elements() / parameter.dims[0];
    const int64_t col = parameter.shard->cols.empty() ? 0 : parameter.shard->cols[0].first;
    int64_t row = 0;
    bool replicated = false;
    for (const Run& run : parameter.shard->rows) {
      const auto [found, first] = number.try_emplace(
          std::tuple(parameter.shard->whole, run.first, run.end, col), runs.size());
      if (first) runs.emplace_back();
      TY_CHECK(!replicated || !first, parameter.name, ": rows of its own behind those of another");
      Replicas& replicas = runs[found->second];
      replicas.places.emplace_back(plan.gradients[i], row * cols);
      replicas.rows = run.size();
      replicas.cols = cols;
      if (!first && !replicated) own.back() = row * cols;
      replicated |= !first;
      row += run.size();
    }
  }
  for (const Replicas& replicas : runs) {
    if (replicas.places.size() == 1) continue;
    const int64_t elements = replicas.rows * replicas.cols;
    AddParts sum{.parts = {}, .rows = replicas.rows, .cols = replicas.cols};
    for (const auto& [gradient, at] : replicas.places) {
      sum.parts.push_back(AddAlias("gradients", gradient, at, elements, plan));
    }
    sum.y = sum.parts[0];
    plan.norm.push_back(sum);
    for (size_t i = 1; i < sum.parts.size(); ++i) {
      plan.norm.push_back(Cast{.x = sum.y, .y = sum.parts[i], .n = elements});
    }
  }
  return own;
}

}  // namespace trainyard::plan
