#pragma once

// The sums of a step over all ranks of a gang where each keeps its share of the gradients alone
// (plan::Plan::gradients_sharded).

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/gradient_shares.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/plan.h"

namespace trainyard::engine {

// Logical ranks hand out their gradients round by round (plan::RoundsInTurn), bucket by bucket: who
// owns a slice is sent it by each of them, and adds it to what it has in the order of the tree, so
// that the sum has the same bits for any number of ranks. On hosts. Every rank makes the same
// calls, of a round that it has no logical rank in too.
class SumToOwners {
 public:
  // `shares`: plan.share_region in memory. `gang` and `plan` must outlive it.
  SumToOwners(Communicator& gang, const plan::Plan& plan, absl::Span<char> shares);

  int64_t rounds() const { return static_cast<int64_t>(rounds_.size()); }

  // Bucket number `bucket`. `gradients`: its elements, of this rank's logical rank of the round;
  // empty if it has none.
  absl::Status Reduce(size_t bucket, int64_t round, absl::Span<float> gradients);

  // Losses and targets of that logical rank, `n` of them on every rank; empty if it has none.
  absl::Status AddSums(int64_t round, absl::Span<double> own, size_t n);
  // After the last round: the total.
  absl::Span<const double> sums() const { return sums_of_places_[0]; }

  // After the last round: the rest of each leaf of the norm that begins in one of this rank's
  // slices and ends in another one.
  absl::Status CompleteLeaves();

 private:
  // What `send` gives for a rank goes there if this one is in the round, and what those that are in
  // it send goes to `receive` of their rank.
  template <typename Send, typename Receive>
  absl::Status Exchange(int64_t round, const Send& send, const Receive& receive);
  absl::Status ReducePiece(size_t bucket, int64_t round, absl::Span<float> gradients,
                           int64_t begin);

  Communicator& gang_;
  const plan::Plan& plan_;
  const GradientShares shares_;
  const std::vector<std::vector<plan::LeafInTurn>> rounds_;
  const std::vector<plan::SharedLeaf> divided_;
  std::vector<float> received_;  // a piece of each rank
  std::vector<float> waiting_;   // a piece of each sum that does not outlive a round
  std::vector<double> received_sums_;
  std::vector<std::vector<double>> sums_of_places_;
  std::vector<Transfer> transfers_;
};

}  // namespace trainyard::engine
