#include "executor/engine/norm_across_ranks.h"

#include <algorithm>

#include "storage/base/status.h"

namespace trainyard::engine {

NormAcrossRanks::NormAcrossRanks(Communicator& gang, const std::vector<plan::Bucket>& buckets,
                                 bool meets)
    : gang_(gang), shared_(plan::SharedLeaves(buckets)), leaves_(gang.size()) {
  for (int rank = 0; rank < gang.size(); ++rank) {
    int64_t count = 0;
    for (const plan::Bucket& bucket : buckets) {
      const plan::ElementRange leaves = plan::LeavesOf(bucket.slices[rank]);
      if (leaves.size() == 0) continue;
      leaves_[rank].push_back(leaves);
      count += leaves.size();
    }
    packed_.emplace_back(meets ? std::max<int64_t>(1, count) : count);
  }
}

// Ranks that have nothing to do with a leaf go on to the next: all in the same order.
absl::Status NormAcrossRanks::CompleteLeaves(absl::Span<float> gradients) {
  for (const plan::SharedLeaf& leaf : shared_) {
    const absl::Span<float> rest = gradients.subspan(leaf.elements.first, leaf.elements.size());
    if (leaf.owner == gang_.rank()) {
      const Transfer from{.peer = static_cast<int>(leaf.holder), .receive = Received(rest)};
      TY_RETURN_IF_ERROR(gang_.Exchange({&from, 1}));
    } else if (leaf.holder == gang_.rank()) {
      const Transfer to{.peer = static_cast<int>(leaf.owner), .send = Sent(rest)};
      TY_RETURN_IF_ERROR(gang_.Exchange({&to, 1}));
    }
  }
  return absl::OkStatus();
}

absl::Status NormAcrossRanks::ShareLeaves(absl::Span<double> leaves) {
  const int me = gang_.rank();
  double* to = packed_[me].data();
  for (const plan::ElementRange& run : leaves_[me]) {
    to = std::copy_n(leaves.data() + run.first, run.size(), to);
  }
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < gang_.size(); ++rank) {
    if (rank == me) continue;
    transfers.push_back({.peer = rank,
                         .send = Sent(absl::MakeSpan(packed_[me])),
                         .receive = Received(absl::MakeSpan(packed_[rank]))});
  }
  TY_RETURN_IF_ERROR(gang_.Exchange(transfers));
  for (int rank = 0; rank < gang_.size(); ++rank) {
    const double* from = packed_[rank].data();
    for (const plan::ElementRange& run : leaves_[rank]) {
      std::copy_n(from, run.size(), leaves.data() + run.first);
      from += run.size();
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
