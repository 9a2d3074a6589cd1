#include "executor/plan/cost/gang_memory.h"

#include <algorithm>
#include <bit>

#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/graph.h"
#include "executor/plan/spec/mesh.h"

namespace trainyard::plan {

namespace {

// Partial sums that all ranks bring.
int64_t SumsOfAll(int64_t logical_ranks, int64_t ranks) {
  int64_t sums = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const LeafRange run = HostedBy(logical_ranks, ranks, rank);
    sums += static_cast<int64_t>(RootsOf(logical_ranks, run).size());
  }
  return sums;
}

// Where gradients are sharded: one of each rank, and at most as many as wait in the tree.
int64_t SumsInTurn(int64_t logical_ranks, int64_t ranks) {
  return ranks + std::bit_width(static_cast<uint64_t>(logical_ranks)) + 1;
}

}  // namespace

int64_t GangBytes(const v1::JobSpec& spec, int64_t logical_ranks) {
  const Mesh mesh = MeshOf(spec);
  const int64_t links = (mesh.ranks() - 1) * kLinkBytes;
  if (mesh.data == 1) return links;
  const int64_t sums = ShardsGradients(spec, mesh.data) ? SumsInTurn(logical_ranks, mesh.data)
                                                        : SumsOfAll(logical_ranks, mesh.data);
  return links + sums * kExchangedElements * SizeOf(ElementType::kF32);
}

int64_t ReceivedBytes(const Plan& plan) {
  int64_t longest = 0;
  int64_t ranks = 1;
  for (const Bucket& bucket : plan.buckets) {
    ranks = static_cast<int64_t>(bucket.slices.size());
    for (const ElementRange& slice : bucket.slices) longest = std::max(longest, slice.size());
  }
  if (ranks == 1) return 0;
  const int64_t sums = plan.gradients_sharded ? SumsInTurn(plan.logical_ranks, ranks)
                                              : SumsOfAll(plan.logical_ranks, ranks);
  return (sums - 1) * longest * SizeOf(ElementType::kF32);
}

// The ids of all ranks, and who has what this one looks up; the rows that it is sent; and those
// that it sends, at most all that the others look up.
int64_t LookUpBytes(const Plan& plan, int64_t ranks) {
  int64_t most = 0;
  for (const LookUp& look_up : {plan.micro_look_up, plan.evaluate_look_up}) {
    if (look_up.rows == kNone) continue;
    most = std::max(most, (ranks + 1) * plan.tensors[look_up.ids].bytes() +
                              ranks * plan.tensors[look_up.rows].bytes());
  }
  return most;
}

}  // namespace trainyard::plan
