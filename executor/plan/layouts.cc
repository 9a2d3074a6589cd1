#include "executor/plan/layouts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/cost/gang_traffic.h"
#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/mesh.h"
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

v1::JobSpec On(v1::JobSpec spec, int32_t slots) {
  spec.mutable_resources()->set_min_slots(slots);
  spec.mutable_resources()->set_max_slots(slots);
  return spec;
}

// Every rank computes, while the buckets that are ready travel; then what is left of them, and what
// is sent after; and the buckets that the next forward pass has to wait for. Latencies, and what it
// takes to add up what came, are left out.
double StepSeconds(const Plan& plan, int64_t hosted, const Rates& rates) {
  const double work = plan.summary.flops_per_step() / static_cast<double>(plan.logical_ranks);
  const double micro_batch =
      work / static_cast<double>(plan.micro_batches) / rates.flops_per_second;
  const double compute = work * static_cast<double>(hosted) / rates.flops_per_second;
  if (plan.buckets.empty()) return compute;
  const Traffic sent = MostTraffic(plan);
  const auto seconds = [&](int64_t bytes) {
    return static_cast<double>(bytes) / rates.bytes_per_second;
  };
  // What is seen of buckets that travel during a pass: the last of the backward pass and the first
  // of the forward pass, and what takes longer than that pass.
  const auto seen = [&](int64_t bytes, double pass) {
    const double one_bucket = seconds(bytes) / static_cast<double>(plan.buckets.size());
    return std::max(one_bucket, seconds(bytes) - pass * micro_batch);
  };
  return compute + seen(sent.in_backward, kBackwardShare) + seconds(sent.after) +
         seen(sent.in_forward, 1 - kBackwardShare);
}

}  // namespace

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

absl::StatusOr<std::vector<v1::LayoutPlan>> PlanLayouts(const v1::JobSpec& spec,
                                                        const DataFacts& facts,
                                                        const std::vector<int32_t>& slots,
                                                        const Rates& rates,
                                                        const std::function<bool()>& stop) {
  const int64_t logical = std::max(1, spec.parallel().logical_ranks());
  std::vector<v1::LayoutPlan> layouts;
  for (const int32_t n : slots) {
    TY_CHECK(n >= 1 && n <= logical, n, " slots of ", logical, " logical ranks");
    if (stop()) break;
    v1::LayoutPlan& layout = layouts.emplace_back();
    layout.set_slots(n);
    const absl::StatusOr<Plan> plan = BuildPlan(On(spec, n), facts);
    if (absl::IsInvalidArgument(plan.status())) {  // a budget of memory that so few cannot hold
      layout.set_refused(std::string(plan.status().message()));
      continue;
    }
    TY_RETURN_IF_ERROR(plan.status());
    const int64_t hosted = MostHosted(logical, n);
    layout.set_logical_ranks_per_slot(static_cast<int32_t>(hosted));
    layout.set_busy_share(static_cast<double>(logical) / static_cast<double>(hosted * n));
    layout.set_bytes_per_slot(plan->summary.bytes_per_slot());
    layout.set_sent_bytes_per_step(plan->summary.sent_bytes_per_step());
    if (rates.flops_per_second > 0 && (n == 1 || rates.bytes_per_second > 0)) {
      layout.set_step_seconds(StepSeconds(*plan, hosted, rates));
    }
  }
  return layouts;
}

std::string AdviseOnLogicalRanks(const v1::JobSpec& spec) {
  const int64_t logical = std::max(1, spec.parallel().logical_ranks());
  const int64_t slots = MeshOf(spec).data;
  const int64_t hosted = MostHosted(logical, slots);
  if (static_cast<double>(logical) >= kBusyEnough * static_cast<double>(hosted * slots)) return "";
  const int64_t fewest = MostHosted(logical, hosted);
  std::string advice = absl::StrCat(logical, " logical ranks on ", slots, " slots: one hosts ",
                                    hosted, " of them, and the others wait for it.");
  if (fewest < slots) absl::StrAppend(&advice, " ", fewest, " slots would be as fast.");
  const int64_t even = hosted * slots;
  const int64_t micro_batch = std::max(1, spec.training().micro_batch_size());
  if (even <= kMostLogicalRanks && spec.training().batch_size() % (even * micro_batch) == 0) {
    absl::StrAppend(&advice, " parallel.logical_ranks: ", even,
                    " would keep all busy; it is another job, whose last digits differ.");
  }
  return advice;
}

}  // namespace trainyard::plan
