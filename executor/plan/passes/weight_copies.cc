#include "executor/plan/passes/weight_copies.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "executor/plan/spec/spec.h"
#include "kernels/scratch/sizes.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kMostKeptCopies = 256 * kernels::scratch::kMiB;  // on a GPU

TensorId Find(const CopyOfWeight& copies, TensorId weight) {
  const auto found = copies.find(weight);
  return found == copies.end() ? kNone : found->second;
}

}  // namespace

WeightCopies PlaceCopies(const v1::JobSpec& spec, const Graph& graph,
                         const std::vector<TensorId>& parameters, size_t dense,
                         int64_t micro_batches, const CopyOfWeight& copies) {
  int64_t bytes = 0;
  for (size_t i = 0; i < dense; ++i) {
    const TensorId copy = Find(copies, parameters[i]);
    if (copy != kNone) bytes += graph[copy].bytes();
  }
  const bool kept_on_gpu =
      OnGpuAlone(spec) && !spec.training().has_recompute() && bytes <= kMostKeptCopies;
  WeightCopies placed;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const TensorId copy = Find(copies, parameters[i]);
    const bool in_step = copy != kNone && micro_batches == 1 && i < dense && !kept_on_gpu;
    placed.kept.push_back(in_step ? kNone : copy);
    if (in_step) placed.cast_in_step.push_back({.weight = parameters[i], .copy = copy});
  }
  return placed;
}

namespace {

// Puts each of `casts`, by what it writes, before the first of `ops` that reads that.
std::vector<Op> BeforeTheirReaders(absl::flat_hash_map<TensorId, Op> casts, std::vector<Op> ops) {
  std::vector<Op> all;
  for (Op& op : ops) {
    const auto read = [&](TensorId id, Access) {
      const auto cast = casts.find(id);
      if (cast == casts.end()) return;
      all.push_back(std::move(cast->second));
      casts.erase(cast);
    };
    VisitOperands(op, read);
    all.push_back(std::move(op));
  }
  return all;
}

}  // namespace

void ReadInEvaluation(const CopyOfWeight& copies, Plan& plan) {
  absl::flat_hash_map<TensorId, TensorId> instead;
  absl::flat_hash_map<TensorId, Op> in_batch;  // by what they write
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const TensorId parameter = plan.parameters[i], copy = Find(copies, parameter);
    const bool averaged = i < plan.averages.size();
    const TensorId weight = averaged ? plan.averages[i] : parameter;
    if (averaged) instead[parameter] = weight;
    if (copy == kNone || (!averaged && plan.copies[i] != kNone)) continue;
    Tensor cast = plan.tensors[copy];
    cast.name = absl::StrCat(plan.tensors[weight].name, " to evaluate");
    const int64_t n = cast.elements();
    plan.tensors.push_back(std::move(cast));
    instead[copy] = static_cast<TensorId>(plan.tensors.size()) - 1;
    const Cast made = {.x = weight, .y = instead[copy], .n = n};
    if (plan.parameters_sharded && i < plan.gradients.size()) {
      plan.tensors.back().kind = TensorKind::kActivation;
      in_batch.insert_or_assign(made.y, made);
    } else {
      plan.evaluate_begin.push_back(made);
    }
  }
  Retarget(instead, plan.evaluate);
  plan.evaluate = BeforeTheirReaders(std::move(in_batch), std::move(plan.evaluate));
}

}  // namespace trainyard::plan
