#include "executor/engine/step_parts.h"

#include <algorithm>

namespace trainyard::engine {

std::vector<StepPart> StepParts(int64_t logical_ranks, plan::LeafRange run, int64_t micro_batches) {
  std::vector<StepPart> parts;
  plan::FoldStack sums(logical_ranks);
  for (int64_t leaf = run.first; leaf < run.end; ++leaf) {
    const int64_t partial = sums.depth();
    for (int64_t i = 0; i < micro_batches; ++i) {
      parts.push_back({.begins_logical_rank = i == 0, .partial = partial});
    }
    parts.back().folds = sums.Push({leaf, leaf + 1});
  }
  parts.front().begins_step = true;
  parts.back().ends_step = run.size() == logical_ranks;
  parts.back().meets = !parts.back().ends_step;
  return parts;
}

std::vector<int64_t> HostsOf(const plan::Plan& plan, int64_t ranks) {
  std::vector<int64_t> hosts;
  if (plan.gradients_sharded) {
    for (const std::vector<plan::LeafInTurn>& round :
         plan::RoundsInTurn(plan.logical_ranks, ranks)) {
      for (const plan::LeafInTurn& leaf : round) hosts.push_back(leaf.rank);
    }
    return hosts;
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    hosts.resize(plan::HostedBy(plan.logical_ranks, ranks, rank).end, rank);
  }
  return hosts;
}

std::vector<int64_t> HostedRanks(const plan::Plan& plan, int64_t ranks, int64_t rank) {
  const std::vector<int64_t> hosts = HostsOf(plan, ranks);
  std::vector<int64_t> hosted;
  for (size_t logical = 0; logical < hosts.size(); ++logical) {
    if (hosts[logical] == rank) hosted.push_back(static_cast<int64_t>(logical));
  }
  return hosted;
}

std::vector<StepPart> PartsInTurn(int64_t hosted, bool rounds) {
  std::vector<StepPart> parts(hosted, {.begins_logical_rank = true, .meets = true});
  for (int64_t i = 0; i < hosted; ++i) parts[i].round = rounds ? i : 0;
  parts.front().begins_step = true;
  return parts;
}

int64_t PartsAhead(int64_t logical_ranks, int64_t ranks, int64_t micro_batches, int64_t own,
                   int64_t in_use) {
  const int64_t most = (logical_ranks + ranks - 1) / ranks * micro_batches;  // of any rank
  return most <= in_use ? own : std::min(in_use, own - (ranks > 1 ? 1 : 0));
}

}  // namespace trainyard::engine
