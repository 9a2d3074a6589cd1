#include "executor/engine/gradient_shares.h"

#include <algorithm>

#include "storage/base/status.h"

namespace trainyard::engine {

float* GradientShares::At(size_t bucket, int64_t place, int64_t element) const {
  const plan::GradientShare& share = plan_.gradient_shares[bucket];
  const int64_t at = plan_.offsets[share.sum] - plan_.share_region.offset +
                     place * plan_.share_bytes +
                     (element - share.elements.first) * static_cast<int64_t>(sizeof(float));
  return reinterpret_cast<float*>(region_.data() + at);
}

absl::Span<float> GradientShares::Find(const plan::ElementRange& elements, bool in_slice) const {
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const plan::ElementRange& slice = plan_.buckets[b].slices[plan_.rank];
    if ((plan::Common(slice, elements).size() > 0) != in_slice) continue;
    if (plan::Common(plan_.gradient_shares[b].elements, elements) != elements) continue;
    return {At(b, 0, elements.first), static_cast<size_t>(elements.size())};
  }
  TY_CHECK(false, "no share of rank ", plan_.rank, " has elements ", elements.first, " to ",
           elements.end);
}

int64_t MostPlaces(const std::vector<std::vector<plan::LeafInTurn>>& rounds) {
  int64_t most = 0;
  for (const std::vector<plan::LeafInTurn>& round : rounds) {
    for (const plan::LeafInTurn& leaf : round) most = std::max(most, leaf.place + 1);
  }
  return most;
}

bool InRound(const std::vector<plan::LeafInTurn>& round, int64_t rank) {
  const auto at = std::lower_bound(
      round.begin(), round.end(), rank,
      [](const plan::LeafInTurn& leaf, int64_t wanted) { return leaf.rank < wanted; });
  return at != round.end() && at->rank == rank;
}

}  // namespace trainyard::engine
