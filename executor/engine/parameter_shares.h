#pragma once

// What a rank keeps of parameters that are sharded (plan::Plan::parameters_sharded), and where they
// are gathered.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "executor/engine/session.h"
#include "executor/plan/graph/shares.h"

namespace trainyard::engine {

// Of a table that is shared out by rows: the number of its first element among all that ranks share
// out (plan::Plan::tables).
int64_t FirstElementOf(const plan::Plan& plan, plan::TensorId table);

class ParameterShares {
 public:
  // `session` must outlive it.
  explicit ParameterShares(Session& session);

  // Keeps what is this rank's of `n` elements, from number `first` on, of the parameter `id`, which
  // has been written where it is gathered. Ordered with what the session launches. Nothing, if the
  // plan's parameters are not sharded or this one is not trained: then it is where it was written.
  void Keep(plan::TensorId id, int64_t first, int64_t n);
  void Keep(plan::TensorId id);

  // Of a table that is shared out by rows: writes to what this rank has of it, of the elements from
  // number `first` on, `values`.
  void WriteRows(plan::TensorId table, int64_t first, absl::Span<const float> values);

  // Where bucket number `bucket` is gathered, and, of it, who keeps which elements. On hosts.
  absl::Span<float> Gathered(size_t bucket) const;
  const plan::Bucket& Slices(size_t bucket) const { return slices_[bucket]; }

  // Copies what this rank keeps of a bucket to where it is gathered. On hosts.
  void Place(size_t bucket) const;

 private:
  Session& session_;
  std::vector<plan::ElementRange> elements_;  // by position, among the dense gradients
  std::vector<plan::Region> gathered_;        // by bucket
  std::vector<plan::Bucket> slices_;          // counted from the start of the bucket
};

}  // namespace trainyard::engine
