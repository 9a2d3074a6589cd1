#pragma once

// What a rank keeps of the sums of gradients where these are sharded (plan::Plan::gradient_shares),
// in its memory or its GPU's.

#include <cstdint>

#include "absl/types/span.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/graph/shares.h"

namespace trainyard::engine {

class GradientShares {
 public:
  // `region`: plan.share_region in memory. `plan` must outlive it.
  GradientShares(const plan::Plan& plan, absl::Span<char> region) : plan_(plan), region_(region) {}

  // Element `element` of the share of a bucket, in place `place`.
  float* At(size_t bucket, int64_t place, int64_t element) const;

  // Where `elements` are in place 0: of the slice that has them, or behind another one in whose
  // last leaf of the norm they are.
  absl::Span<float> Find(const plan::ElementRange& elements, bool in_slice) const;

 private:
  const plan::Plan& plan_;
  const absl::Span<char> region_;
};

// How many sums there are at once in the middle of a round.
int64_t MostPlaces(const std::vector<std::vector<plan::LeafInTurn>>& rounds);

// Whether rank `rank` has a logical rank in `round`.
bool InRound(const std::vector<plan::LeafInTurn>& round, int64_t rank);

}  // namespace trainyard::engine
