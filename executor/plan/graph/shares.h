#pragma once

// How the gradients of a job are shared out among its ranks: in buckets, which are exchanged as
// soon as the backward pass is done with them, and each bucket in slices, one of each rank, so that
// every exchange keeps all links busy. A rank adds up the sums of its slices and, where the
// optimizer's state is sharded, steps these parameters alone, or together with the other owners of
// the same slice. No number depends on it. Pure.

#include <cstdint>
#include <vector>

namespace trainyard::plan {

// Elements [first, end) of the gradients that lie side by side, padding included.
struct ElementRange {
  int64_t first = 0, end = 0;
  int64_t size() const { return end - first; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// What both have; an empty range where that is nothing.
ElementRange Common(const ElementRange& a, const ElementRange& b);

struct Bucket {
  ElementRange elements;
  // By rank; some may be empty. Where a slice has several owners (Parallel.second_owner), that of
  // each, and the owners of one slice of a bucket have the same slice of every other one, too.
  std::vector<ElementRange> slices;
};

// Cuts [0, elements) into buckets for `ranks` ranks. `whole`, in order: the runs that one rank must
// have, such as a tensor of which the optimizer takes the norm. All other cuts are at multiples of
// kernels::kNormLeaf where a slice has as many elements, else of 16. `together`: the runs that one
// bucket must have, all of [0, elements) in order; none: buckets end anywhere. `owners`: each
// slice has as many, if there are as many ranks, and some may have one more. Rank r owns what rank
// r + n owns, of n slices: any n neighbouring ranks may be lost, and every slice still has an
// owner.
std::vector<Bucket> CutBuckets(int64_t elements, const std::vector<ElementRange>& whole,
                               int64_t ranks, const std::vector<ElementRange>& together = {},
                               int64_t owners = 1);

// Into how many slices a bucket is cut then.
int64_t SlicesFor(int64_t ranks, int64_t owners);
// Which of the owners of slice `slice` of `slices` sends it to `rank`, of `ranks`, which has
// another.
int64_t SourceOf(int64_t slice, int64_t slices, int64_t rank, int64_t ranks);

// The slices of all ranks, in order of their elements; none is empty. Of several owners the first.
struct RankSlice {
  ElementRange elements;
  int64_t rank = 0;
  size_t bucket = 0;
};
std::vector<RankSlice> SlicesInOrder(const std::vector<Bucket>& buckets);

// To whom a rank sends its slice of a bucket, and from whom it is sent theirs, where all are to
// have all of it.
struct Handing {
  std::vector<bool> to, from;  // by rank
};
Handing HandingOf(const Bucket& bucket, int64_t rank);

// The same buckets as a gang sees them that consists of some of the ranks, in this order.
std::vector<Bucket> BucketsOf(const std::vector<Bucket>& buckets,
                              const std::vector<int64_t>& ranks);
// Whether every element has an owner.
bool CoverAll(const std::vector<Bucket>& buckets);

// The leaves of the norm (kernels/ops/norm_leaves.h) whose sum the owner of `slice` makes: those
// that begin in it. The end of the last may lie in other slices (SharedLeaves).
ElementRange LeavesOf(const ElementRange& slice);

// Elements of a leaf that begins in another rank's slice. One for each owner of that slice.
struct SharedLeaf {
  int64_t owner = 0;      // of the slice that the leaf begins in
  int64_t holder = 0;     // of the slice that has `elements`; of several, the one that sends them
  ElementRange elements;  // within one leaf
};
std::vector<SharedLeaf> SharedLeaves(const std::vector<Bucket>& buckets);
// Those, and the elements of a leaf that begins in another slice of the same rank.
std::vector<SharedLeaf> DividedLeaves(const std::vector<Bucket>& buckets);

}  // namespace trainyard::plan
