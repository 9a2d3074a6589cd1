#pragma once

// The sums of a step over all ranks of a gang.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/gang_sums.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/engine/partial_sum.h"
#include "executor/plan/graph/shares.h"

namespace trainyard::engine {

// Each rank brings what it added up of the logical ranks that it hosts, and ends with the sum over
// all, in the order of GangSums: the same bits for any number of ranks. On hosts.
// Gradients are cut among the ranks (plan::Bucket): each is sent its slice of every other's and
// adds that up. A rank so sends (W - 1) / W of the gradients for each sum that it brings, and as
// much again where all ranks are to have the total; more if slices have two owners. Every
// rank makes the same calls.
class SumAcrossRanks {
 public:
  // The ranks host plan::HostedBy(logical_ranks, gang.size(), rank). `gang` must outlive it.
  SumAcrossRanks(Communicator& gang, int64_t logical_ranks);

  // How many sums this rank brings.
  int64_t own() const { return all_.of(gang_.rank()); }

  // Losses and targets: `own`, in the order of the logical ranks; the result goes to own[0].
  absl::Status AddSums(absl::Span<const PartialSum> own);

  // One bucket of the gradients: afterwards this rank's slice of own[0] is the total. What the
  // others have in that slice is lost.
  absl::Status Reduce(const plan::Bucket& bucket, absl::Span<const PartialSum> own);

  // Each rank's slice of `bucket` in `values`, which are as many as the gradients, goes to all; of
  // several owners of a slice, to each rank from one. `handing`: plan::HandingOf this rank.
  absl::Status Gather(const plan::Bucket& bucket, const plan::Handing& handing,
                      absl::Span<float> values);

 private:
  // Calls piece(begin) for each piece of the longest slice.
  template <typename F>
  static absl::Status ForEachPiece(const plan::Bucket& bucket, const F& piece);
  // A piece of what every rank's slice has, `begin` elements from its start.
  absl::Status ReducePiece(const plan::Bucket& bucket, absl::Span<const PartialSum> own,
                           int64_t begin);

  // parts[i], of sum i of all, are each `n` long: adds them up into the first.
  template <typename T>
  void AddUp(absl::Span<T* const> parts, size_t n) const;

  Communicator& gang_;
  const GangSums all_;
  int64_t most_ = 0;                   // sums of a rank
  std::vector<double> received_sums_;  // all of them
  std::vector<double*> sum_parts_;
  std::vector<float> received_;  // a piece of each
  std::vector<float*> parts_;    // where the pieces are that are added up
  std::vector<Transfer> transfers_;
};

}  // namespace trainyard::engine
