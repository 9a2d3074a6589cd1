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

// `spec`, which must come from ResolveSpec, on each number of `slots` from 1 to its logical ranks.
// Ends early, with the layouts so far, once `stop` says so.
absl::StatusOr<std::vector<v1::LayoutPlan>> PlanLayouts(const v1::JobSpec& spec,
                                                        const DataFacts& facts,
                                                        const std::vector<int32_t>& slots,
                                                        const Rates& rates,
                                                        const std::function<bool()>& stop);

// What another number of logical ranks would change, for a person who is about to submit `spec`;
// "" where there is nothing to say.
std::string AdviseOnLogicalRanks(const v1::JobSpec& spec);

}  // namespace trainyard::plan
