#include "executor/plan/cost/gang_memory.h"

#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

int64_t GangBytes(int64_t logical_ranks, int64_t ranks) {
  if (ranks == 1) return 0;
  int64_t sums = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const LeafRange run = HostedBy(logical_ranks, ranks, rank);
    sums += static_cast<int64_t>(RootsOf(logical_ranks, run).size());
  }
  return (ranks - 1) * kLinkBytes + sums * kExchangedElements * SizeOf(ElementType::kF32);
}

}  // namespace trainyard::plan
