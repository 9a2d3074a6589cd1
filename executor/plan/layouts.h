#pragma once

// What a job takes, and how fast it goes, on other numbers of slots. Pure.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// How a job is run: on so many slots, of which each `tensor` neighbours share the shards of their
// logical ranks (parallel.layout.tensor).
struct JobLayout {
  int32_t slots = 1;
  int32_t tensor = 1;
  friend bool operator==(const JobLayout&, const JobLayout&) = default;
};

// How many ranks may share the shards of `spec`, which must come from ResolveSpec, from the fewest:
// what it says itself, and of numbers with which the rank that hosts most shards hosts equally many
// the smallest. None that ResolveSpec would refuse.
std::vector<int32_t> TensorsWorthHaving(const v1::JobSpec& spec);

// Of these numbers of ranks that share shards each with which `spec` can run on `slots` slots; of
// none, the one with the first of them, which PlanLayouts refuses.
std::vector<JobLayout> LayoutsOn(const v1::JobSpec& spec, const std::vector<int32_t>& tensors,
                                 int32_t slots);

// The layouts on the numbers of slots that are worth having with one of `tensors`, none above
// `most`. There are at most `count`, but at least those on the fewest slots.
std::vector<JobLayout> LayoutsWorthHaving(const v1::JobSpec& spec,
                                          const std::vector<int32_t>& tensors, int64_t most,
                                          size_t count);

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
