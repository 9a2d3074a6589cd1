#include "executor/plan/layouts.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/cost/cost.h"
#include "executor/plan/cost/gang_traffic.h"
#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// Of the time of a micro-batch: the gradients of all operands take twice the work of the forward
// pass.
constexpr double kBackwardShare = 2.0 / 3;

// Below this share of its time a slot is not busy enough for nothing to be said.
constexpr double kBusyEnough = 0.9;

int64_t MostHosted(int64_t logical_ranks, int64_t slots) {
  return (logical_ranks + slots - 1) / slots;
}

v1::JobSpec On(v1::JobSpec spec, const JobLayout& layout) {
  spec.mutable_resources()->set_min_slots(layout.slots);
  spec.mutable_resources()->set_max_slots(layout.slots);
  v1::Layout& ranks = *spec.mutable_parallel()->mutable_layout();
  ranks.set_tensor(layout.group.tensor);  // ResolveSpec leaves out what is 1
  ranks.set_pipeline(layout.group.pipeline);
  // Of ranks that have one shard each.
  if (layout.group.tensor != spec.parallel().tensor()) ranks.clear_sequence();
  // Of several stages, and at most one for each layer.
  const int32_t stages = layout.group.pipeline;
  if (stages == 1 || ranks.chunks() * stages > LayersOf(spec.model())) ranks.clear_chunks();
  return spec;
}

// Numbers of ranks that are worth having to share `parts`, at most `most`, and `own`; from the
// fewest.
std::vector<int32_t> Sharing(int64_t parts, int32_t most, int32_t own) {
  std::vector<int32_t> ranks = SlotsWorthHaving(parts, most, most + 1);
  if (!std::binary_search(ranks.begin(), ranks.end(), own)) {
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), own), own);
  }
  return ranks;
}

absl::StatusOr<Plan> ResolveAndBuild(const v1::JobSpec& spec, const DataFacts& facts) {
  TY_ASSIGN_OR_RETURN(const v1::JobSpec resolved, ResolveSpec(spec));
  return BuildLargestPlan(resolved, facts);
}

}  // namespace

// What ranks exchange that share shards, they wait for. Every rank computes, while the buckets that
// are ready travel; then what is left of them, and what is sent after; and the buckets that the
// next forward pass has to wait for.
double EstimateStepSeconds(const Plan& plan, const JobLayout& layout, const Rates& rates) {
  const int64_t hosted = MostHosted(plan.logical_ranks, layout.slots / layout.group.ranks());
  const double work =
      OwnShare(plan) * plan.summary.flops_per_step() / static_cast<double>(plan.logical_ranks);
  const double micro_batch =
      work / static_cast<double>(plan.micro_batches) / rates.flops_per_second;
  const Traffic sent = MostTraffic(plan);
  const auto seconds = [&](int64_t bytes) {
    return bytes == 0 ? 0 : static_cast<double>(bytes) / rates.bytes_per_second;
  };
  const double compute = work * static_cast<double>(hosted) / rates.flops_per_second /
                             (1 - plan.summary.bubble_share()) +
                         seconds(sent.of_shards);
  // What is seen of buckets that travel during a pass: the last of the backward pass and the first
  // of the forward pass, and what takes longer than that pass. Of every pass, where each logical
  // rank hands out its gradients, or gathers parameters.
  const auto seen = [&](int64_t bytes, double pass, bool of_each) {
    const int64_t passes = of_each ? hosted : 1;
    const double one = seconds(bytes) / static_cast<double>(passes);
    const auto buckets = static_cast<double>(std::max<size_t>(1, plan.buckets.size()));
    const double one_bucket = one / buckets;
    return static_cast<double>(passes) * std::max(one_bucket, one - pass * micro_batch);
  };
  // A stage hands its gradients out once its passes are over.
  const double gradients = plan.host.stages > 1
                               ? seconds(sent.in_backward)
                               : seen(sent.in_backward, kBackwardShare, plan.gradients_sharded);
  return compute + gradients + seconds(sent.after) +
         seen(sent.in_forward, 1 - kBackwardShare, plan.parameters_sharded);
}

std::vector<int32_t> SlotsWorthHaving(int64_t logical_ranks, int64_t most, size_t count) {
  std::vector<int32_t> slots;
  for (int64_t hosted = logical_ranks; hosted > 0;) {
    const int64_t fewest = MostHosted(logical_ranks, hosted);
    if (fewest > most) break;
    slots.push_back(static_cast<int32_t>(fewest));
    hosted = MostHosted(logical_ranks, fewest) - 1;
  }
  if (slots.size() <= count) return slots;
  std::vector<int32_t> some;
  for (size_t i = 0; i < count; ++i) some.push_back(slots[i * (slots.size() - 1) / (count - 1)]);
  return some;
}

RankGroup GroupOf(const v1::JobSpec& spec) {
  const v1::Layout& layout = spec.parallel().layout();
  return {.tensor = std::max(1, layout.tensor()), .pipeline = std::max(1, layout.pipeline())};
}

std::vector<RankGroup> GroupsWorthHaving(const v1::JobSpec& spec) {
  const RankGroup own = GroupOf(spec);
  const int32_t shards = std::max(1, spec.parallel().tensor());
  const int32_t stages = std::max(1, spec.parallel().pipeline());
  const int64_t layers = stages > 1 ? LayersOf(spec.model()) : 1;
  std::vector<RankGroup> groups;
  for (const int32_t tensor : Sharing(shards, shards, own.tensor)) {
    for (const int32_t pipeline : Sharing(layers, stages, own.pipeline)) {
      const RankGroup group = {.tensor = tensor, .pipeline = pipeline};
      const JobLayout alone = {.slots = group.ranks(), .group = group};
      if (group == own || ResolveSpec(On(spec, alone)).ok()) groups.push_back(group);
    }
  }
  return groups;
}

std::vector<JobLayout> LayoutsOn(const v1::JobSpec& spec, const std::vector<RankGroup>& groups,
                                 int32_t slots) {
  const int64_t logical = std::max(1, spec.parallel().logical_ranks());
  std::vector<JobLayout> layouts;
  for (const RankGroup& group : groups) {
    if (slots % group.ranks() == 0 && slots / group.ranks() <= logical) {
      layouts.push_back({slots, group});
    }
  }
  if (layouts.empty()) layouts.push_back({slots, groups.front()});
  return layouts;
}

std::vector<JobLayout> LayoutsWorthHaving(const v1::JobSpec& spec,
                                          const std::vector<RankGroup>& groups, int64_t most,
                                          size_t count) {
  const int64_t logical = std::max(1, spec.parallel().logical_ranks());
  std::set<int32_t> numbers;
  for (const RankGroup& group : groups) {
    for (const int32_t n : SlotsWorthHaving(logical, most / group.ranks(), count)) {
      numbers.insert(n * group.ranks());
    }
  }
  const std::vector<int32_t> all(numbers.begin(), numbers.end());
  std::vector<JobLayout> layouts;
  // As many of these numbers as there may be, the first and the last among them.
  for (size_t some = all.size(); some > 0; --some) {
    layouts.clear();
    for (size_t i = 0; i < some; ++i) {
      const size_t place = some == 1 ? 0 : i * (all.size() - 1) / (some - 1);
      for (const JobLayout& layout : LayoutsOn(spec, groups, all[place])) {
        layouts.push_back(layout);
      }
    }
    if (layouts.size() <= count) break;
  }
  return layouts;
}

namespace {

// The first, the one in the middle, those in the middle of what is left, and so on: wherever it
// ends, what came until then is spread over all.
std::vector<size_t> SpreadOverAll(size_t count) {
  std::vector<size_t> order;
  if (count > 0) order.push_back(0);
  for (size_t step = std::bit_ceil(count) / 2; step > 0; step /= 2) {
    for (size_t i = step; i < count; i += 2 * step) order.push_back(i);
  }
  return order;
}

absl::StatusOr<v1::LayoutPlan> PlanLayout(const v1::JobSpec& spec, const DataFacts& facts,
                                          const JobLayout& layout, const Rates& rates) {
  v1::LayoutPlan told;
  told.set_slots(layout.slots);
  const RankGroup& group = layout.group;
  if (spec.parallel().tensor() > 1) told.mutable_layout()->set_tensor(group.tensor);
  if (spec.parallel().pipeline() > 1) told.mutable_layout()->set_pipeline(group.pipeline);
  const v1::JobSpec laid_out = On(spec, layout);
  const v1::Layout& ranks = laid_out.parallel().layout();
  if (ranks.sequence()) told.mutable_layout()->set_sequence(true);
  if (ranks.chunks() > 1) told.mutable_layout()->set_chunks(ranks.chunks());
  const absl::StatusOr<Plan> plan = ResolveAndBuild(laid_out, facts);
  // Not so many slots, or a budget of memory that so few cannot hold.
  if (absl::IsInvalidArgument(plan.status()) || absl::IsUnimplemented(plan.status())) {
    told.set_refused(std::string(plan.status().message()));
    return told;
  }
  TY_RETURN_IF_ERROR(plan.status());
  const int64_t logical = plan->logical_ranks;
  const int64_t hosted = MostHosted(logical, layout.slots / group.ranks());
  told.set_logical_ranks_per_slot(static_cast<int32_t>(hosted));
  // The stages of a pipeline count as if they had equally much to do.
  const double own = group.pipeline > 1 ? 1.0 / group.ranks() : OwnShare(*plan);
  told.set_busy_share((1 - plan->summary.bubble_share()) * static_cast<double>(logical) /
                      (own * static_cast<double>(hosted * layout.slots)));
  told.set_bytes_per_slot(plan->summary.bytes_per_slot());
  told.set_sent_bytes_per_step(plan->summary.sent_bytes_per_step());
  if (rates.flops_per_second > 0 && (layout.slots == 1 || rates.bytes_per_second > 0)) {
    told.set_step_seconds(EstimateStepSeconds(*plan, layout, rates));
  }
  return told;
}

}  // namespace

absl::StatusOr<std::vector<v1::LayoutPlan>> PlanLayouts(const v1::JobSpec& spec,
                                                        const DataFacts& facts,
                                                        const std::vector<JobLayout>& layouts,
                                                        const Rates& rates,
                                                        const std::function<bool()>& stop) {
  std::vector<std::optional<v1::LayoutPlan>> planned(layouts.size());
  for (const size_t i : SpreadOverAll(layouts.size())) {
    if (stop()) break;
    TY_ASSIGN_OR_RETURN(planned[i], PlanLayout(spec, facts, layouts[i], rates));
  }
  std::vector<v1::LayoutPlan> plans;
  for (std::optional<v1::LayoutPlan>& plan : planned) {
    if (plan.has_value()) plans.push_back(*std::move(plan));
  }
  return plans;
}

std::string AdviseOnLogicalRanks(const v1::JobSpec& spec) {
  const int64_t logical = std::max(1, spec.parallel().logical_ranks());
  const Mesh mesh = MeshOf(spec);
  const int64_t hosted = MostHosted(logical, mesh.data);
  if (static_cast<double>(logical) >= kBusyEnough * static_cast<double>(hosted * mesh.data)) {
    return "";
  }
  const int64_t fewest = MostHosted(logical, hosted);
  const std::string groups =
      mesh.in_group() > 1 ? absl::StrCat(" groups of ", mesh.in_group()) : "";
  std::string advice =
      absl::StrCat(logical, " logical ranks on ", mesh.data, groups, " slots: one hosts ", hosted,
                   " of them, and the others wait for it.");
  if (fewest < mesh.data) {
    absl::StrAppend(&advice, " ", fewest * mesh.in_group(), " slots would be as fast.");
  }
  const int64_t even = hosted * mesh.data;
  const int64_t micro_batch = std::max(1, spec.training().micro_batch_size());
  if (even <= kMostLogicalRanks && spec.training().batch_size() % (even * micro_batch) == 0) {
    absl::StrAppend(&advice, " parallel.logical_ranks: ", even,
                    " would keep all busy; it is another job, whose last digits differ.");
  }
  return advice;
}

}  // namespace trainyard::plan
