#include "executor/plan/sizing.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "executor/plan/build.h"
#include "executor/plan/cost/gang_memory.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/spec/mesh.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// How many looks are spent on finding out with how many ranks one holds most.
constexpr int kMostLooks = 64;

// Numbers of ranks of which one needs most memory, but for that to exchange by: the fewest, since
// each then owns the most state, and the fewest of each depth to which partial sums pile up.
std::vector<int> RanksToSize(const v1::JobSpec& spec) {
  // Counts groups of ranks that share logical ranks; without a layout a rank is a group.
  const auto group = static_cast<int>(RanksInGroup(spec.parallel()));
  const int least = std::max(1, spec.resources().min_slots() / group);
  const int most = std::max(least, spec.resources().max_slots() / group);
  const int logical = std::max(most, spec.parallel().logical_ranks());
  std::vector<int> ranks;
  std::set<int64_t> depths;
  int64_t places = 0;  // of sums that a rank keeps where gradients are sharded, at most so far
  for (int n = least; n <= std::min(most, least + kMostLooks - 1); ++n) {
    if (ShardsGradients(spec, n)) {
      const int64_t needed = PlacesBetweenRounds(RoundsInTurn(logical, n));
      if (needed > places) ranks.push_back(n * group);
      places = std::max(places, needed);
      continue;
    }
    if (depths.insert(MostSums(logical, n)).second) ranks.push_back(n * group);
  }
  return ranks;
}

}  // namespace

absl::StatusOr<Plan> PlanForAnyRanks(const v1::JobSpec& spec, const DataFacts& facts) {
  const auto links = [&spec](int ranks) {
    v1::JobSpec on = spec;
    on.mutable_resources()->set_max_slots(ranks);
    return GangBytes(on, std::max(ranks, spec.parallel().logical_ranks()));
  };
  std::optional<Plan> largest;
  for (const int ranks : RanksToSize(spec)) {
    v1::JobSpec one = spec;
    one.mutable_resources()->set_min_slots(ranks);
    one.mutable_resources()->set_max_slots(ranks);
    TY_ASSIGN_OR_RETURN(Plan plan, BuildLargestPlan(one, facts));
    const int most = std::max(ranks, spec.resources().max_slots());
    const int64_t more =
        links(most) - links(ranks) + LookUpBytes(plan, most) - LookUpBytes(plan, ranks);
    plan.summary.set_staging_bytes(plan.summary.staging_bytes() + more);
    if (plan.summary.device() != v1::Resources::CUDA) {
      plan.summary.set_bytes_per_slot(plan.summary.bytes_per_slot() + more);
    }
    if (!largest.has_value() || plan.summary.bytes_per_slot() > largest->summary.bytes_per_slot()) {
      largest = std::move(plan);
    }
  }
  return *std::move(largest);
}

}  // namespace trainyard::plan
