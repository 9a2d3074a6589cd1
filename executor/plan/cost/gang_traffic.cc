#include "executor/plan/cost/gang_traffic.h"

#include <algorithm>

#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

namespace {

// Whether parameters that were stepped are sent while the next step reads others: not by GPUs, nor
// by ranks that share a logical rank, nor where something is made of all of them first.
bool GathersInForward(const Plan& plan) {
  return plan.summary.device() != v1::Resources::CUDA && plan.host.ranks == 1 &&
         plan.gathered.empty();
}

// Elements that rank `rank` sends of its slice, so that all ranks have all of the bucket.
int64_t HandedOut(const Bucket& bucket, int64_t rank) {
  const Handing handing = HandingOf(bucket, rank);
  return std::count(handing.to.begin(), handing.to.end(), true) * bucket.slices[rank].size();
}

// Of the slices that the other ranks have.
int64_t ElementsOfOthers(const Bucket& bucket, int64_t rank) {
  int64_t elements = -bucket.slices[rank].size();
  for (const ElementRange& slice : bucket.slices) elements += slice.size();
  return elements;
}

// Where parameters are sharded: what rank `rank` of `ranks` sends of them. Each round of logical
// ranks gathers them anew.
Traffic GatheredInRounds(const Plan& plan, int64_t ranks, int64_t rank) {
  const int64_t rounds = (plan.logical_ranks + ranks - 1) / ranks;
  Traffic sent;
  std::vector<bool> seen(plan.buckets.size());
  for (const Gather& gather : plan.micro_gathers) {
    const Bucket& bucket = plan.buckets[gather.bucket];
    int64_t& pass = seen[gather.bucket] ? sent.in_backward : sent.in_forward;
    pass += rounds * HandedOut(bucket, rank) * SizeOf(ElementType::kF32);
    seen[gather.bucket] = true;
  }
  return sent;
}

// Where tables are shared out: what rank `rank` of `ranks` sends of them in a step whose look-ups
// are spread evenly over their rows. All ids go to all in each round of logical ranks, in which
// each has one micro-batch.
int64_t LookedUp(const Plan& plan, int64_t ranks, int64_t rank) {
  const LookUp& look_up = plan.micro_look_up;
  if (look_up.rows == kNone) return 0;
  const int64_t rounds = (plan.logical_ranks + ranks - 1) / ranks;
  const int64_t shares = SlicesFor(ranks, plan.owners), own = rank % shares;
  int64_t others = 0;  // logical ranks whose rows this rank sends, if it has them
  for (int64_t r = 0; r < ranks; ++r) {
    if (r % shares == own || SourceOf(own, shares, r, ranks) != rank) continue;
    others += HostedBy(plan.logical_ranks, ranks, r).size();
  }
  return rounds * (ranks - 1) * plan.tensors[look_up.ids].bytes() +
         others * plan.tensors[look_up.rows].bytes() / shares;
}

// What rank `rank` of `ranks` sends, but for parameters that are sharded, and the leaves of the
// norm that begin in others' slices.
Traffic OwnTraffic(const Plan& plan, int64_t ranks, int64_t rank) {
  const int64_t others = ranks - 1;
  const int64_t gradient = SizeOf(ElementType::kF32), leaf_sum = SizeOf(ElementType::kF64);
  const LeafRange run = HostedBy(plan.logical_ranks, ranks, rank);
  const int64_t sums = plan.gradients_sharded
                           ? run.size()  // each on its own
                           : static_cast<int64_t>(RootsOf(plan.logical_ranks, run).size());
  Traffic sent;
  int64_t& of_parameters = GathersInForward(plan) ? sent.in_forward : sent.after;
  int64_t leaves = 0;
  for (const Bucket& bucket : plan.buckets) {
    const ElementRange& own = bucket.slices[rank];
    sent.in_backward += sums * ElementsOfOthers(bucket, rank) * gradient;
    // The total of its slices; the parameters that it stepped; the sums of its leaves.
    if (plan.sums_for_all) sent.in_backward += others * own.size() * gradient;
    if (plan.sharded && !plan.parameters_sharded) {
      of_parameters += HandedOut(bucket, rank) * gradient;
    }
    leaves += LeavesOf(own).size();
  }
  if (plan.owners > 1) leaves = std::max<int64_t>(1, leaves);  // so that all ranks meet
  if (!plan.sums_for_all) sent.after += others * leaves * leaf_sum;
  sent.after += others * sums * plan.sums_region.bytes;
  sent.after += others * run.size() * plan.micro_batches * plan.pending_region.bytes;
  for (const TensorId rows : {plan.row_gradient, plan.row_ids}) {
    if (rows == kNone) continue;
    sent.after += others * run.size() * (plan.tensors[rows].bytes() / plan.logical_ranks);
  }
  return sent;
}

// What the rank of this plan sends to the others that have a part in these exchanges.
int64_t SentToGroup(const Plan& plan, const std::vector<ShardExchange>& exchanges) {
  int64_t bytes = 0;
  for (const ShardExchange& exchange : exchanges) {
    const auto ranks = static_cast<int64_t>(exchange.ranks.size());
    const int64_t others = (ranks == 0 ? plan.host.ranks : ranks) - 1;
    for (const TensorId id : exchange.tensors) {
      const Tensor& tensor = plan.tensors[id];
      const bool gathers = exchange.gathered != kNone;
      if (!gathers && tensor.made_by != plan.host.rank) continue;
      if (gathers || exchange.rows.empty()) {
        bytes += others * tensor.bytes();
        continue;
      }
      int64_t rows = 0;
      for (const Run& run : exchange.rows) rows += run.size();
      bytes += tensor.bytes() / rows * (rows - exchange.rows[plan.host.place()].size());
    }
  }
  return bytes;
}

// In a micro-batch to the stages beside it.
int64_t SentToStages(const Plan& plan) {
  int64_t bytes = 0;
  for (const StageChunk& chunk : plan.chunks) {
    for (const TensorId id : {chunk.links.to_after, chunk.links.to_before}) {
      if (id != kNone) bytes += plan.tensors[id].bytes();
    }
  }
  return bytes;
}

}  // namespace

std::vector<Traffic> TrafficOfRanks(const Plan& plan) {
  const int64_t ranks = plan.data_ranks;
  std::vector<Traffic> sent(ranks);
  for (int64_t rank = 0; rank < ranks && ranks > 1; ++rank) {
    sent[rank] = OwnTraffic(plan, ranks, rank);
    const Traffic gathered = GatheredInRounds(plan, ranks, rank);
    sent[rank].in_forward += gathered.in_forward;
    sent[rank].in_backward += gathered.in_backward;
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t micro_batches =
        HostedBy(plan.logical_ranks, ranks, rank).size() * plan.micro_batches;
    sent[rank].of_shards =
        LookedUp(plan, ranks, rank) +
        micro_batches * (SentToGroup(plan, plan.micro_exchanges) + SentToStages(plan)) +
        SentToGroup(plan, plan.norm_exchanges);
  }
  if (plan.sums_for_all) return sent;
  for (const SharedLeaf& leaf : SharedLeaves(plan.buckets)) {
    sent[leaf.holder].after += leaf.elements.size() * SizeOf(ElementType::kF32);
  }
  return sent;
}

Traffic MostTraffic(const Plan& plan) {
  const std::vector<Traffic> sent = TrafficOfRanks(plan);
  return *std::max_element(sent.begin(), sent.end(), [](const Traffic& a, const Traffic& b) {
    return a.bytes() < b.bytes();
  });
}

}  // namespace trainyard::plan
