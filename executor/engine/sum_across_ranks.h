#pragma once

// The sums of a step over all ranks of a gang.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/plan/graph/fold_tree.h"

namespace trainyard::engine {

// A sum over some logical ranks: of losses and targets, and of gradients. As long on every rank.
struct PartialSumOnHost {
  absl::Span<double> sums;
  absl::Span<float> gradients;
};

// Each rank brings what it added up of the logical ranks that it hosts (plan::RootsOf), and ends
// with the sum over all, in the order of plan::FoldStack: the same bits for any number of ranks.
// Gradients are cut among the ranks: each is sent its share of every other's, adds that up, and
// sends the result to all, so that a rank sends twice (W - 1) / W of the gradients in all if every
// rank brings one sum.
class SumAcrossRanks {
 public:
  // The ranks host plan::HostedBy(logical_ranks, gang.size(), rank). `gang` must outlive it.
  SumAcrossRanks(Communicator& gang, int64_t logical_ranks);

  // How many sums this rank brings.
  int64_t own() const { return static_cast<int64_t>(roots_[gang_.rank()].size()); }

  // `own`, in the order of the logical ranks; the result goes to own[0], the others are lost. Every
  // rank calls it.
  absl::Status Run(absl::Span<const PartialSumOnHost> own);

 private:
  absl::Status AddSums(absl::Span<const PartialSumOnHost> own);
  absl::Status AddGradients(absl::Span<const PartialSumOnHost> own);
  // One piece of every rank's share of the gradients, `begin` from its start.
  absl::Status AddPiece(absl::Span<const PartialSumOnHost> own, int64_t begin);
  // The elements of rank `rank`'s piece.
  absl::Span<float> Piece(absl::Span<float> gradients, int64_t rank, int64_t begin) const;

  // parts[i], of root i of all, are each `n` long: adds them up into the first.
  template <typename T>
  void AddUp(absl::Span<T* const> parts, size_t n) const;

  Communicator& gang_;
  std::vector<std::vector<plan::LeafRange>> roots_;  // by rank
  std::vector<int64_t> first_root_;  // by rank: how many roots the ranks before have
  int64_t most_roots_ = 0;           // of a rank
  // Numbers of roots, in the order in which the tree adds the second to the first.
  std::vector<std::pair<size_t, size_t>> folds_;
  std::vector<double> received_sums_;  // of every root
  std::vector<double*> sum_parts_;
  std::vector<float> received_;  // a piece of every root
  std::vector<float*> parts_;    // where the pieces are that are added up
  std::vector<Transfer> transfers_;
};

}  // namespace trainyard::engine
