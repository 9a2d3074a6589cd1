#pragma once

// Which sums the ranks of a gang bring, and in which order they are added up. Pure.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "executor/plan/graph/fold_tree.h"

namespace trainyard::engine {

// Each rank brings what it added up of the logical ranks that it hosts (plan::RootsOf). All of
// these sums are numbered by rank, and those of a rank in the order of its logical ranks.
struct GangSums {
  std::vector<int64_t>
      first;  // by rank: the number of its first sum; at the end, how many there are
  // Numbers of two sums, in the order in which the second is added to the first (plan::FoldStack):
  // in the end sum 0 is the total.
  std::vector<std::pair<size_t, size_t>> folds;

  int64_t all() const { return first.back(); }
  int64_t of(int rank) const { return first[rank + 1] - first[rank]; }
};

// Of `ranks` ranks, which host plan::HostedBy(logical_ranks, ranks, rank).
GangSums SumsOfGang(int64_t logical_ranks, int ranks);

}  // namespace trainyard::engine
