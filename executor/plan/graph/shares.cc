#include "executor/plan/graph/shares.h"

#include <algorithm>
#include <utility>

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

int64_t SlicesFor(int64_t ranks, int64_t owners) { return std::max<int64_t>(1, ranks / owners); }

std::vector<Bucket> CutBuckets(int64_t elements, const std::vector<ElementRange>& whole,
                               int64_t ranks, const std::vector<ElementRange>& together,
                               int64_t owners) {
  const int64_t slices = SlicesFor(ranks, owners);
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
    const int64_t grain = (end - begin) / slices >= kNormLeaf ? kNormLeaf : kLine;
    int64_t first = begin;
    for (int64_t i = 0; i < slices; ++i) {
      const int64_t wanted = begin + (end - begin) * (i + 1) / slices;
      const int64_t next = std::max(first, std::min(end, cuts.AtOrAfter(wanted, grain)));
      for (int64_t r = (i + turn) % slices; r < ranks; r += slices)
        bucket.slices[r] = {first, next};
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
  for (size_t b = 0; b < buckets.size(); ++b) {
    const std::vector<ElementRange>& of_ranks = buckets[b].slices;
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      if (of_ranks[rank].size() == 0) continue;
      slices.push_back({of_ranks[rank], static_cast<int64_t>(rank), b});
    }
  }
  std::sort(slices.begin(), slices.end(), [](const RankSlice& a, const RankSlice& b) {
    return std::make_pair(a.elements.first, a.rank) < std::make_pair(b.elements.first, b.rank);
  });
  const auto same = [](const RankSlice& a, const RankSlice& b) { return a.elements == b.elements; };
  slices.erase(std::unique(slices.begin(), slices.end(), same), slices.end());
  return slices;
}

namespace {

std::vector<int64_t> OwnersOf(const Bucket& bucket, int64_t owner) {
  std::vector<int64_t> owners;
  for (size_t rank = 0; rank < bucket.slices.size(); ++rank) {
    if (bucket.slices[rank] == bucket.slices[owner]) owners.push_back(static_cast<int64_t>(rank));
  }
  return owners;
}

// Which of so many owners is in the part of the gang in which `rank` is: of two, in its half.
int64_t PlaceOfSource(int64_t owners, int64_t rank, int64_t ranks) { return rank * owners / ranks; }

// Of the owners of the slice that `owner` has: the one that sends it to `rank`, which has another.
int64_t SourceOf(const Bucket& bucket, int64_t owner, int64_t rank) {
  const std::vector<int64_t> owners = OwnersOf(bucket, owner);
  const auto ranks = static_cast<int64_t>(bucket.slices.size());
  return owners[PlaceOfSource(static_cast<int64_t>(owners.size()), rank, ranks)];
}

// Whether no slice has a second owner.
bool OneOwnerEach(const Bucket& bucket) {
  int64_t sum = 0;
  for (const ElementRange& slice : bucket.slices) sum += slice.size();
  return sum == bucket.elements.size();
}

}  // namespace

int64_t SourceOf(int64_t slice, int64_t slices, int64_t rank, int64_t ranks) {
  const int64_t owners = (ranks - slice + slices - 1) / slices;
  return slice + PlaceOfSource(owners, rank, ranks) * slices;
}

Handing HandingOf(const Bucket& bucket, int64_t rank) {
  const size_t ranks = bucket.slices.size();
  Handing handing{.to = std::vector<bool>(ranks, true), .from = std::vector<bool>(ranks, true)};
  handing.to[rank] = handing.from[rank] = false;
  if (OneOwnerEach(bucket)) return handing;
  for (size_t other = 0; other < ranks; ++other) {
    const auto number = static_cast<int64_t>(other);
    const bool same = bucket.slices[other] == bucket.slices[rank];
    handing.to[other] = !same && SourceOf(bucket, rank, number) == rank;
    handing.from[other] = !same && SourceOf(bucket, number, rank) == number;
  }
  return handing;
}

std::vector<Bucket> BucketsOf(const std::vector<Bucket>& buckets,
                              const std::vector<int64_t>& ranks) {
  std::vector<Bucket> of;
  for (const Bucket& bucket : buckets) {
    of.push_back({.elements = bucket.elements});
    for (const int64_t rank : ranks) of.back().slices.push_back(bucket.slices[rank]);
  }
  return of;
}

bool CoverAll(const std::vector<Bucket>& buckets) {
  int64_t wanted = 0, owned = 0;
  for (const Bucket& bucket : buckets) wanted += bucket.elements.size();
  for (const RankSlice& slice : SlicesInOrder(buckets)) owned += slice.elements.size();
  return owned == wanted;
}

std::vector<SharedLeaf> SharedLeaves(const std::vector<Bucket>& buckets) {
  std::vector<SharedLeaf> shared = DividedLeaves(buckets);
  std::erase_if(shared, [](const SharedLeaf& leaf) { return leaf.owner == leaf.holder; });
  return shared;
}

std::vector<SharedLeaf> DividedLeaves(const std::vector<Bucket>& buckets) {
  std::vector<SharedLeaf> divided;
  RankSlice begins;  // the slice that the leaf begins in that the slice before ends in
  for (const RankSlice& slice : SlicesInOrder(buckets)) {
    const int64_t leaf_end = LineUp(slice.elements.first, kNormLeaf);
    const ElementRange rest = Common(slice.elements, {slice.elements.first, leaf_end});
    if (rest.size() > 0) {
      const Bucket& of_rest = buckets[slice.bucket];
      for (const int64_t owner : OwnersOf(buckets[begins.bucket], begins.rank)) {
        const bool has_both = of_rest.slices[owner] == slice.elements;
        divided.push_back({.owner = owner,
                           .holder = has_both ? owner : SourceOf(of_rest, slice.rank, owner),
                           .elements = rest});
      }
    }
    if (LeavesOf(slice.elements).size() > 0) begins = slice;
  }
  return divided;
}

}  // namespace trainyard::plan
