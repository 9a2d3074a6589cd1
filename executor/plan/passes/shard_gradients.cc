#include "executor/plan/passes/shard_gradients.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/passes/bucket_order.h"
#include "executor/plan/passes/optimizer_step.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// What rank `rank` keeps of `bucket`, of `elements` gradients in all.
ElementRange ShareOf(const Bucket& bucket, int64_t rank, int64_t elements) {
  ElementRange share = bucket.slices[rank];
  const ElementRange leaves = LeavesOf(share);
  if (leaves.size() > 0) {
    share.end = std::max(share.end, std::min(elements, leaves.end * kernels::kNormLeaf));
  }
  return share;
}

int64_t BytesOfShares(const Plan& plan, int64_t rank, int64_t elements) {
  int64_t bytes = 0;
  for (const Bucket& bucket : plan.buckets) {
    bytes += Align(ShareOf(bucket, rank, elements).size() * SizeOf(ElementType::kF32));
  }
  return bytes;
}

// By bucket: from the first to the last byte that any of `ranks` ranks has of it, from the start of
// plan.share_region. So all ranks lay out the same memory, whichever shares they have.
std::vector<Region> SharesOfAllRanks(const Plan& plan, int64_t ranks) {
  std::vector<Region> all(plan.buckets.size());
  if (all.empty()) return all;
  const int64_t elements = plan.buckets.back().elements.end;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t offset = 0;
    for (size_t b = 0; b < all.size(); ++b) {
      const int64_t share = ShareOf(plan.buckets[b], rank, elements).size();
      const Region own = {.offset = offset, .bytes = Align(share * SizeOf(ElementType::kF32))};
      offset = own.end();
      if (own.bytes == 0) continue;
      const Region before = all[b].bytes == 0 ? own : all[b];
      all[b].offset = std::min(before.offset, own.offset);
      all[b].bytes = std::max(before.end(), own.end()) - all[b].offset;
    }
  }
  return all;
}

// The bucket of which rank plan.rank has element `at` in its slice.
size_t BucketOf(const Plan& plan, int64_t at) {
  const auto found =
      std::find_if(plan.buckets.begin(), plan.buckets.end(), [&](const Bucket& bucket) {
        return Common(bucket.slices[plan.rank], {at, at + 1}).size() > 0;
      });
  TY_CHECK(found != plan.buckets.end(), "element ", at, " is in no slice of rank ", plan.rank);
  return found - plan.buckets.begin();
}

}  // namespace

std::vector<ElementRange> ElementsOfGradients(const Plan& plan, size_t dense) {
  std::vector<ElementRange> runs;
  int64_t begin = 0;
  for (size_t i = 0; i < dense; ++i) {
    runs.push_back({begin, begin + RunLength(plan, i, i + 1)});
    begin = runs.back().end;
  }
  return runs;
}

void ShareOutGradients(int64_t ranks, size_t dense, Plan& plan) {
  const int64_t elements = RunLength(plan, 0, dense);
  for (const Bucket& bucket : plan.buckets) {
    const ElementRange share = ShareOf(bucket, plan.rank, elements);
    TensorId sum = kNone;
    if (share.size() > 0) {
      sum = static_cast<TensorId>(plan.tensors.size());
      plan.tensors.push_back(
          {.name = absl::StrCat("sum of gradients from ", share.first, " to ", share.end),
           .dims = {share.size()},
           .kind = TensorKind::kPartialSum});
    }
    plan.gradient_shares.push_back({.elements = share, .sum = sum});
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    plan.share_bytes = std::max(plan.share_bytes, BytesOfShares(plan, rank, elements));
  }
  plan.share_places = PlacesBetweenRounds(RoundsInTurn(plan.logical_ranks, ranks));
  const std::vector<ElementRange> runs = ElementsOfGradients(plan, dense);
  for (size_t i = 0; i < dense; ++i) {
    const int64_t used = plan.tensors[plan.parameters[i]].elements();
    const ElementRange padding = {runs[i].first + used, runs[i].end};
    for (const Bucket& bucket : plan.buckets) {
      const ElementRange own = Common(bucket.slices[plan.rank], padding);
      if (own.size() == 0) continue;
      plan.clear_padding.push_back(
          Zero{.x = AddGradientAlias(own.first, own.size(), plan), .n = own.size()});
    }
  }
}

TensorId AddGradientAlias(int64_t first, int64_t n, Plan& plan) {
  if (!plan.gradients_sharded) return AddAlias("gradients", plan.gradients[0], first, n, plan);
  const GradientShare& share = plan.gradient_shares[BucketOf(plan, first)];
  return AddAlias("gradients", share.sum, first - share.elements.first, n, plan);
}

Region GradientRegionOf(const Plan& plan, size_t bucket) {
  const ElementRange& elements = plan.buckets[bucket].elements;
  size_t first = 0;
  for (int64_t at = 0; at < elements.first; ++first) at += RunLength(plan, first, first + 1);
  return {.offset = plan.offsets[plan.gradients[first]],
          .bytes = elements.size() * SizeOf(ElementType::kF32)};
}

std::vector<ReservedRange> SharesInMicro(const Plan& plan) {
  const auto end = static_cast<int64_t>(plan.micro.size());
  const int64_t ranks = plan.data_ranks;
  if (plan.logical_ranks > ranks) {
    return {{.offset = 0, .bytes = plan.share_region.bytes, .first = -1, .last = end}};
  }
  const std::vector<Region> shares = SharesOfAllRanks(plan, ranks);
  std::vector<ReservedRange> reserved;
  for (const ReadyBucket& ready : BucketOrder(plan)) {
    const Region& share = shares[ready.bucket];
    if (share.bytes == 0) continue;
    reserved.push_back(
        {.offset = share.offset, .bytes = share.bytes, .first = ready.after_op, .last = end});
  }
  return reserved;
}

std::vector<TensorRun> GradientRuns(const Plan& plan) {
  std::vector<TensorRun> runs;
  if (!plan.gradients_sharded) return runs;
  std::vector<int64_t> first(plan.tensors.size(), static_cast<int64_t>(plan.micro.size()));
  for (auto i = static_cast<int64_t>(plan.micro.size()) - 1; i >= 0; --i) {
    VisitOperands(plan.micro[i], [&](TensorId id, Access) { first[id] = i; });
  }
  const std::vector<ElementRange> elements = ElementsOfGradients(plan, plan.gradients.size());
  for (const ReadyBucket& ready : BucketOrder(plan)) {
    TensorRun run{.live = {ready.after_op, ready.free_after_op}};
    for (size_t i = 0; i < plan.gradients.size(); ++i) {
      if (Common(plan.buckets[ready.bucket].elements, elements[i]).size() == 0) continue;
      run.tensors.push_back(plan.gradients[i]);
      run.live.first = std::min(run.live.first, first[plan.gradients[i]]);
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace trainyard::plan
