#pragma once

// How the sums of logical ranks are added up: in one binary tree, which their number alone decides.
// A node over n leaves splits at the largest power of two below n (as the hash trees of RFC 6962).
// Whoever computes the leaves, every sum of floating-point numbers is so made in one order.

#include <cstdint>
#include <vector>

namespace trainyard::plan {

// Logical ranks [first, end).
struct LeafRange {
  int64_t first = 0, end = 0;
  int64_t size() const { return end - first; }
  friend bool operator==(const LeafRange&, const LeafRange&) = default;
};

// The logical ranks that rank `rank` of `ranks` hosts: the ranks take them in order, and no rank
// takes more than one more than another.
LeafRange HostedBy(int64_t logical_ranks, int64_t ranks, int64_t rank);

// Sums of ranges of leaves that are still to be added up, in the order of the leaves.
class FoldStack {
 public:
  explicit FoldStack(int64_t leaves) : leaves_(leaves) {}

  // Puts the sum of `range`, a node of the tree, on top; `range` begins where the one below ends.
  // Returns how many times the top is then to be added to the sum below it, which becomes the top.
  int64_t Push(LeafRange range);

  // From the bottom to the top.
  const std::vector<LeafRange>& sums() const { return sums_; }
  int64_t depth() const { return static_cast<int64_t>(sums_.size()); }

 private:
  const int64_t leaves_;
  std::vector<LeafRange> sums_;
};

// Where ranks keep no sums of their own (Plan::gradients_sharded) they take the logical ranks in
// turn, round by round, each as many as HostedBy gives it. The sum of a logical rank is put in
// place `place`, on top of a stack, then the top is `folds` times added to what lies below.
struct LeafInTurn {
  int64_t rank = 0;
  int64_t place = 0, folds = 0;
};
// By round, in the order of the logical ranks, which go on from round to round.
std::vector<std::vector<LeafInTurn>> RoundsInTurn(int64_t logical_ranks, int64_t ranks);

// The most sums that are left after a round.
int64_t PlacesBetweenRounds(const std::vector<std::vector<LeafInTurn>>& rounds);

// The sums that are left when the leaves of `run` were added up as far as the tree allows: its
// largest nodes within `run`, at most 2 ceil(log2 of its leaves) of them (1 of one leaf).
std::vector<LeafRange> RootsOf(int64_t leaves, LeafRange run);

// The most sums that any of `ranks` ranks holds at once while it adds up the leaves that it hosts.
int64_t MostSums(int64_t logical_ranks, int64_t ranks);

}  // namespace trainyard::plan
