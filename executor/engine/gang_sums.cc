#include "executor/engine/gang_sums.h"

#include "storage/base/status.h"

namespace trainyard::engine {

GangSums SumsOfGang(int64_t logical_ranks, int ranks) {
  GangSums gang{.first = {0}};
  plan::FoldStack stack(logical_ranks);
  std::vector<size_t> waiting;
  size_t next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const plan::LeafRange& root :
         plan::RootsOf(logical_ranks, plan::HostedBy(logical_ranks, ranks, rank))) {
      waiting.push_back(next++);
      for (int64_t folds = stack.Push(root); folds > 0; --folds) {
        const size_t from = waiting.back();
        waiting.pop_back();
        gang.folds.emplace_back(waiting.back(), from);
      }
    }
    gang.first.push_back(static_cast<int64_t>(next));
  }
  TY_CHECK(waiting.size() == 1, waiting.size(), " sums are left");
  return gang;
}

}  // namespace trainyard::engine
