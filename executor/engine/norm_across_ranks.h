#pragma once

// The norm of a gradient of which every rank has a share.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/plan/graph/shares.h"

namespace trainyard::engine {

// Every rank makes the sums of the leaves that begin in its slices (kernels/ops/norm_leaves.h), and
// is given those of the others. Every rank makes the same calls.
class NormAcrossRanks {
 public:
  // `gang` must outlive it. `meets`: ShareLeaves returns only once all ranks have called it, even
  // if some have no leaves.
  NormAcrossRanks(Communicator& gang, const std::vector<plan::Bucket>& buckets, bool meets);

  // Before the leaves are summed: the ends of this rank's leaves that lie in others' slices are
  // written to `gradients`.
  absl::Status CompleteLeaves(absl::Span<float> gradients);

  // The sums of the leaves of all ranks are written to `leaves`, which has this rank's.
  absl::Status ShareLeaves(absl::Span<double> leaves);

 private:
  Communicator& gang_;
  const std::vector<plan::SharedLeaf> shared_;
  std::vector<std::vector<plan::ElementRange>> leaves_;  // by rank
  std::vector<std::vector<double>> packed_;  // by rank: the sums of leaves_, or one number
};

}  // namespace trainyard::engine
