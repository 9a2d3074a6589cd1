#pragma once

// The sums of a step over all ranks of a gang.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/shares.h"

namespace trainyard::engine {

// A sum over some logical ranks: of losses and targets, and of gradients. As long on every rank.
struct PartialSumOnHost {
  absl::Span<double> sums;
  absl::Span<float> gradients;
};

// Each rank brings what it added up of the logical ranks that it hosts (plan::RootsOf), and ends
// with the sum over all, in the order of plan::FoldStack: the same bits for any number of ranks.
// Gradients are cut among the ranks (plan::Bucket): each is sent its slice of every other's and
// adds that up. A rank so sends (W - 1) / W of the gradients for each sum that it brings, and as
// much again where all ranks are to have the total. Every rank makes the same calls.
class SumAcrossRanks {
 public:
  // The ranks host plan::HostedBy(logical_ranks, gang.size(), rank). `gang` must outlive it.
  SumAcrossRanks(Communicator& gang, int64_t logical_ranks);

  // How many sums this rank brings.
  int64_t own() const { return static_cast<int64_t>(roots_[gang_.rank()].size()); }

  // Losses and targets: `own`, in the order of the logical ranks; the result goes to own[0].
  absl::Status AddSums(absl::Span<const PartialSumOnHost> own);

  // One bucket of the gradients: afterwards this rank's slice of own[0] is the total. What the
  // others have in that slice is lost.
  absl::Status Reduce(const plan::Bucket& bucket, absl::Span<const PartialSumOnHost> own);

  // Each rank's slice of `bucket` in `values`, which are as many as the gradients, goes to all.
  absl::Status Gather(const plan::Bucket& bucket, absl::Span<float> values);

 private:
  // Calls piece(begin) for each piece of the longest slice.
  template <typename F>
  static absl::Status ForEachPiece(const plan::Bucket& bucket, const F& piece);
  // A piece of what every rank's slice has, `begin` elements from its start.
  absl::Status ReducePiece(const plan::Bucket& bucket, absl::Span<const PartialSumOnHost> own,
                           int64_t begin);

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
