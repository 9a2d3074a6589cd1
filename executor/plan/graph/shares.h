#pragma once

// How the gradients of a job are shared out among its ranks: in buckets, which are exchanged as
// soon as the backward pass is done with them, and each bucket in slices, one of each rank, so that
// every exchange keeps all links busy. A rank adds up the sums of its slices and, where the
// optimizer's state is sharded, steps these parameters alone. No number depends on it. Pure.

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
  std::vector<ElementRange> slices;  // by rank; some may be empty
};

// Cuts [0, elements) into buckets for `ranks` ranks. `whole`, in order: the runs that one rank must
// have, such as a tensor of which the optimizer takes the norm. All other cuts are at multiples of
// kernels::kNormLeaf where a slice has as many elements, else of 16. `together`: the runs that one
// bucket must have, all of [0, elements) in order; none: buckets end anywhere.
std::vector<Bucket> CutBuckets(int64_t elements, const std::vector<ElementRange>& whole,
                               int64_t ranks, const std::vector<ElementRange>& together = {});

// The slices of all ranks, in order of their elements; none is empty.
struct RankSlice {
  ElementRange elements;
  int64_t rank = 0;
};
std::vector<RankSlice> SlicesInOrder(const std::vector<Bucket>& buckets);

// The leaves of the norm (kernels/ops/norm_leaves.h) whose sum the owner of `slice` makes: those
// that begin in it. The end of the last may lie in other slices (SharedLeaves).
ElementRange LeavesOf(const ElementRange& slice);

// Elements of a leaf that begins in another rank's slice.
struct SharedLeaf {
  int64_t owner = 0;      // of the slice that the leaf begins in
  int64_t holder = 0;     // of the slice that has `elements`
  ElementRange elements;  // within one leaf
};
std::vector<SharedLeaf> SharedLeaves(const std::vector<Bucket>& buckets);
// Those, and the elements of a leaf that begins in another slice of the same rank.
std::vector<SharedLeaf> DividedLeaves(const std::vector<Bucket>& buckets);

}  // namespace trainyard::plan
