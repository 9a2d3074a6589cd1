#include "executor/plan/graph/shares.h"

#include <algorithm>

#include "executor/plan/graph/ops.h"

namespace trainyard::plan {

namespace {

using kernels::kNormLeaf;

int64_t LineUp(int64_t n, int64_t grain) { return (n + grain - 1) / grain * grain; }

// A bucket has about an eighth of the gradients, so that most of them travel while the backward
// pass goes on, but no fewer than a message is worth, and no more than keeps the last one short.
constexpr int64_t kBucketsWanted = 8;
constexpr int64_t kLeastInBucket = kNormLeaf;
constexpr int64_t kMostInBucket = int64_t{2} << 20;

// Elements of a line of the cache.
constexpr int64_t kLine = 16;

// Where cuts may be.
class Cuts {
 public:
  Cuts(int64_t elements, const std::vector<ElementRange>& whole)
      : elements_(elements), whole_(whole) {}

  // The cut from `at` on that is a multiple of `grain` or the end of a run that stays whole.
  int64_t AtOrAfter(int64_t at, int64_t grain) const {
    const int64_t cut = std::min(elements_, LineUp(at, grain));
    const auto run = std::upper_bound(whole_.begin(), whole_.end(), cut,
                                      [](int64_t c, const ElementRange& r) { return c < r.end; });
    return run != whole_.end() && run->first < cut ? run->end : cut;
  }

 private:
  const int64_t elements_;
  const std::vector<ElementRange>& whole_;
};

// Of `runs`, the first end that is not before `at`, or the last one.
int64_t EndAtOrAfter(const std::vector<ElementRange>& runs, int64_t at) {
  const auto run = std::lower_bound(runs.begin(), runs.end(), at,
                                    [](const ElementRange& r, int64_t a) { return r.end < a; });
  return run == runs.end() ? runs.back().end : run->end;
}

int64_t BucketSize(int64_t elements) {
  return std::clamp(elements / kBucketsWanted, kLeastInBucket, kMostInBucket);
}

}  // namespace

ElementRange Common(const ElementRange& a, const ElementRange& b) {
  const int64_t first = std::max(a.first, b.first);
  return {.first = first, .end = std::max(first, std::min(a.end, b.end))};
}

std::vector<Bucket> CutBuckets(int64_t elements, const std::vector<ElementRange>& whole,
                               int64_t ranks, const std::vector<ElementRange>& together) {
  const Cuts cuts(elements, whole);
  std::vector<Bucket> buckets;
  for (int64_t begin = 0; begin < elements;) {
    const int64_t wanted_end = begin + BucketSize(elements);
    const int64_t end = together.empty() ? cuts.AtOrAfter(wanted_end, kNormLeaf)
                                         : EndAtOrAfter(together, wanted_end);
    Bucket bucket{.elements = {begin, end}};
    bucket.slices.resize(ranks, {end, end});
    // Every bucket begins with another rank's slice: where slices differ in size, ranks have about
    // as much in all.
    const auto turn = static_cast<int64_t>(buckets.size());
    const int64_t grain = (end - begin) / ranks >= kNormLeaf ? kNormLeaf : kLine;
    int64_t first = begin;
    for (int64_t i = 0; i < ranks; ++i) {
      const int64_t wanted = begin + (end - begin) * (i + 1) / ranks;
      const int64_t next = std::max(first, std::min(end, cuts.AtOrAfter(wanted, grain)));
      bucket.slices[(i + turn) % ranks] = {first, next};
      first = next;
    }
    buckets.push_back(std::move(bucket));
    begin = end;
  }
  return buckets;
}

ElementRange LeavesOf(const ElementRange& slice) {
  return {.first = LineUp(slice.first, kNormLeaf) / kNormLeaf,
          .end = LineUp(slice.end, kNormLeaf) / kNormLeaf};
}

std::vector<RankSlice> SlicesInOrder(const std::vector<Bucket>& buckets) {
  std::vector<RankSlice> slices;
  for (const Bucket& bucket : buckets) {
    for (size_t rank = 0; rank < bucket.slices.size(); ++rank) {
      if (bucket.slices[rank].size() == 0) continue;
      slices.push_back({bucket.slices[rank], static_cast<int64_t>(rank)});
    }
  }
  std::sort(slices.begin(), slices.end(), [](const RankSlice& a, const RankSlice& b) {
    return a.elements.first < b.elements.first;
  });
  return slices;
}

std::vector<SharedLeaf> SharedLeaves(const std::vector<Bucket>& buckets) {
  std::vector<SharedLeaf> shared = DividedLeaves(buckets);
  std::erase_if(shared, [](const SharedLeaf& leaf) { return leaf.owner == leaf.holder; });
  return shared;
}

std::vector<SharedLeaf> DividedLeaves(const std::vector<Bucket>& buckets) {
  std::vector<SharedLeaf> divided;
  int64_t owner = 0;  // of the leaf that the slice before ends in
  for (const RankSlice& slice : SlicesInOrder(buckets)) {
    const int64_t leaf_end = LineUp(slice.elements.first, kNormLeaf);
    const ElementRange rest = Common(slice.elements, {slice.elements.first, leaf_end});
    if (rest.size() > 0) {
      divided.push_back({.owner = owner, .holder = slice.rank, .elements = rest});
    }
    if (LeavesOf(slice.elements).size() > 0) owner = slice.rank;
  }
  return divided;
}

}  // namespace trainyard::plan
