#include "executor/plan/passes/shard_optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/shard_gradients.h"
#include "executor/plan/passes/share_tables.h"
#include "executor/plan/spec/mesh.h"
#include "kernels/scratch/sizes.h"

namespace trainyard::plan {

namespace {

// Parameters that one rule treats alike.
struct RuleRun {
  size_t position = 0;  // of the first
  ElementRange elements;
};

std::vector<RuleRun> RuleRuns(const Plan& plan, const TrainedParameters& parameters) {
  std::vector<RuleRun> runs;
  int64_t begin = 0;
  for (size_t first = 0; first < parameters.dense;) {
    size_t end = first + 1;
    while (end < parameters.dense && parameters.rules[end] == parameters.rules[first]) ++end;
    const int64_t n = RunLength(plan, first, end);
    runs.push_back({.position = first, .elements = {begin, begin + n}});
    begin += n;
    first = end;
  }
  return runs;
}

std::vector<ElementRange> WholeRuns(const v1::Optimizer& optimizer, const Plan& plan,
                                    const TrainedParameters& parameters) {
  std::vector<ElementRange> whole;
  for (const PlacedTensor& placed : PlacedTensors(plan, parameters.dense)) {
    if (StepsWholeTensors(optimizer, parameters.rules[placed.position])) {
      whole.push_back(placed.elements);
    }
  }
  return whole;
}

// The runs of which rank `rank` has the state.
std::vector<RuleRun> OwnedBy(int64_t rank, const std::vector<Bucket>& buckets,
                             const std::vector<RuleRun>& runs) {
  std::vector<RuleRun> owned;
  for (const Bucket& bucket : buckets) {
    for (const RuleRun& run : runs) {
      const ElementRange common = Common(bucket.slices[rank], run.elements);
      if (common.size() > 0) owned.push_back({.position = run.position, .elements = common});
    }
  }
  return owned;
}

}  // namespace

std::vector<PlacedTensor> PlacedTensors(const Plan& plan, size_t dense) {
  std::vector<PlacedTensor> placed;
  int64_t begin = 0;
  for (size_t i = 0; i < dense; ++i) {
    const Tensor& parameter = plan.tensors[plan.parameters[i]];
    const std::vector<StoredTensor> its =
        parameter.shard
            ? std::vector<StoredTensor>{{.name = parameter.name, .dims = parameter.dims}}
            : Stored(parameter);
    for (const StoredTensor& stored : its) {
      const int64_t first = begin + stored.offset / SizeOf(ElementType::kF32);
      placed.push_back({.position = i,
                        .stored = stored,
                        .elements = {.first = first, .end = first + stored.elements()}});
    }
    begin += RunLength(plan, i, i + 1);
    placed.back().elements.end = begin;
  }
  return placed;
}

TensorId AddAlias(const std::string& what, TensorId of, int64_t first, int64_t n, Plan& plan) {
  const ElementType type = plan.tensors[of].type;
  plan.tensors.push_back({.name = absl::StrCat(what, " from ", first, " to ", first + n),
                          .type = type,
                          .dims = {n},
                          .kind = TensorKind::kAlias});
  const auto id = static_cast<TensorId>(plan.tensors.size()) - 1;
  plan.aliases.push_back({.tensor = id, .of = of, .offset = first * SizeOf(type)});
  return id;
}

bool ShardsOptimizer(const v1::JobSpec& spec, int64_t ranks) {
  return ranks > 1 && StateSharedOut(spec) != v1::Parallel::NONE;
}

void ShareOut(const v1::JobSpec& spec, const TrainedParameters& parameters, int64_t ranks,
              int64_t rank, Plan& plan) {
  const v1::Optimizer& optimizer = spec.optimizer();
  const int64_t elements = RunLength(plan, 0, parameters.dense);
  plan.sharded = elements > 0 && ShardsOptimizer(spec, ranks);
  plan.sums_for_all = !plan.sharded || HasNormOfShards(spec.parallel());
  std::vector<ElementRange> whole;
  if (plan.sharded) whole = WholeRuns(optimizer, plan, parameters);
  plan.gradients_sharded = plan.sharded && ShardsGradients(spec, ranks);
  plan.parameters_sharded = plan.sharded && ShardsParameters(spec, ranks);
  std::vector<ElementRange> together;
  if (plan.gradients_sharded) together = ElementsOfGradients(plan, parameters.dense);
  if (plan.sharded) plan.owners = OwnersIn(spec);
  plan.buckets = CutBuckets(elements, whole, ranks, together, plan.owners);
  if (!plan.sharded) return;
  if (plan.gradients_sharded) ShareOutGradients(ranks, parameters.dense, plan);

  const auto add = [&](Tensor tensor) {
    plan.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(plan.tensors.size()) - 1;
  };
  if (!plan.sums_for_all) {
    plan.leaves = add({.name = "leaves of the norm",
                       .type = ElementType::kF64,
                       .dims = {kernels::scratch::Ceil(elements, kernels::kNormLeaf)},
                       .kind = TensorKind::kScalar});
  }
  const std::vector<RuleRun> runs = RuleRuns(plan, parameters);
  const auto names_of = [&](const RuleRun& run) {
    return StateNames(optimizer, parameters.rules[run.position]);
  };
  for (const RuleRun& run : OwnedBy(rank, plan.buckets, runs)) {
    OwnedRun owned{.elements = run.elements};
    for (const std::string& kind : plan.optimizer_state_names) {
      if (!absl::c_linear_search(names_of(run), kind)) {
        owned.state.push_back(kNone);
        continue;
      }
      const std::string name =
          absl::StrCat(kind, " from ", run.elements.first, " to ", run.elements.end);
      owned.state.push_back(
          add({.name = name, .dims = {run.elements.size()}, .kind = TensorKind::kOptimizerState}));
    }
    if (plan.parameters_sharded) {
      owned.weights =
          add({.name = absl::StrCat("weights from ", run.elements.first, " to ", run.elements.end),
               .dims = {run.elements.size()},
               .kind = TensorKind::kParameter});
    }
    plan.owned.push_back(std::move(owned));
  }
  for (int64_t r = 0; r < SlicesFor(ranks, plan.owners); ++r) {  // the others own the same
    int64_t state = 0, weights = 0;
    for (const RuleRun& run : OwnedBy(r, plan.buckets, runs)) {
      const int64_t bytes = Align(run.elements.size() * SizeOf(ElementType::kF32));
      state += static_cast<int64_t>(names_of(run).size()) * bytes;
      weights += bytes;
    }
    plan.most_optimizer_bytes = std::max(plan.most_optimizer_bytes, state);
    plan.all_optimizer_bytes += state;
    if (plan.parameters_sharded) {
      plan.most_weight_bytes = std::max(plan.most_weight_bytes, weights);
      plan.all_weight_bytes += weights;
    }
  }
  if (SharesTables(spec, parameters, ranks)) ShareTables(optimizer, parameters, ranks, rank, plan);
}

}  // namespace trainyard::plan
