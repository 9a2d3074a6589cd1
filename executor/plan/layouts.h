#pragma once

// What a job takes, and how fast it goes, on other numbers of slots. Pure.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// What slots do. 0: not known, and no time is estimated.
struct Rates {
  double flops_per_second = 0;  // that a slot reaches in training, not its peak
  double bytes_per_second = 0;  // that a slot sends to all others together
};

// Numbers of slots that are worth having, from the fewest: of all with which the rank that hosts
// most logical ranks hosts equally many, and which are so equally fast, the smallest. None
// is above `most`, and there are at most `count` of them, which is at least 2: the first and the
// last stay.
std::vector<int32_t> SlotsWorthHaving(int64_t logical_ranks, int64_t most, size_t count);

// Ranks that share logical ranks (parallel.layout): `pipeline` stages of `tensor` ranks, which
// share the shards of a stage.
struct RankGroup {
  int32_t tensor = 1, pipeline = 1;
  int32_t ranks() const { return tensor * pipeline; }
  friend bool operator==(const RankGroup&, const RankGroup&) = default;
};

// How a job is run: on so many slots, in groups.
struct JobLayout {
  int32_t slots = 1;
  RankGroup group;
  friend bool operator==(const JobLayout&, const JobLayout&) = default;
};

// That of `spec` itself.
RankGroup GroupOf(const v1::JobSpec& spec);

// The groups in which `spec`, which must come from ResolveSpec, may run, from the fewest ranks that
// share shards, of these from the fewest stages: its own, and of numbers with which the rank that
// has most shards, or layers, has equally many the smallest. None that ResolveSpec would refuse.
std::vector<RankGroup> GroupsWorthHaving(const v1::JobSpec& spec);

// In each of `groups` with which `spec` can run on `slots` slots; if there is none, in the first,
// which PlanLayouts refuses.
std::vector<JobLayout> LayoutsOn(const v1::JobSpec& spec, const std::vector<RankGroup>& groups,
                                 int32_t slots);

// The layouts on the numbers of slots that are worth having in one of `groups`, none above `most`.
// There are at most `count`, but at least those on the fewest slots.
std::vector<JobLayout> LayoutsWorthHaving(const v1::JobSpec& spec,
                                          const std::vector<RankGroup>& groups, int64_t most,
                                          size_t count);

// The time of a step by `plan`, of a job that is run in `layout`. Latencies, and what it takes to
// add up what came, are left out.
double EstimateStepSeconds(const Plan& plan, const JobLayout& layout, const Rates& rates);

// `spec`, which must come from ResolveSpec, in each of `layouts`, in their order. Ends early, with
// some that are spread over all, once `stop` says so.
absl::StatusOr<std::vector<v1::LayoutPlan>> PlanLayouts(const v1::JobSpec& spec,
                                                        const DataFacts& facts,
                                                        const std::vector<JobLayout>& layouts,
                                                        const Rates& rates,
                                                        const std::function<bool()>& stop);

// What another number of logical ranks would change, for a person who is about to submit `spec`;
// "" where there is nothing to say.
std::string AdviseOnLogicalRanks(const v1::JobSpec& spec);

}  // namespace trainyard::plan
