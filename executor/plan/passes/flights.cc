#include "executor/plan/passes/flights.h"

#include <utility>

#include "executor/plan/memory/memory.h"

namespace trainyard::plan {

Flights FlightsIn(const Plan& plan) {
  Flights flights = {.count = plan.in_flight};
  if (plan.links.from_after != kNone) flights.backward_from = plan.backward_from;
  for (const TensorId sent : {plan.links.to_after, plan.links.to_before}) {
    if (sent != kNone) flights.sent.push_back(sent);
  }
  return flights;
}

std::vector<bool> StaysInFlight(const Flights& flights, const std::vector<Tensor>& tensors,
                                const std::vector<Op>& ops) {
  std::vector<bool> stays(tensors.size());
  if (flights.left_before_backward()) {
    const int64_t cut = flights.backward_from;
    for (const LiveRange& range : LiveRanges(tensors, ops, {})) {
      stays[range.tensor] = range.first < cut && cut <= range.last;
    }
  }
  for (const TensorId sent : flights.sent) stays[sent] = true;
  return stays;
}

std::vector<Tensor> PackedWhere(std::vector<Tensor> tensors, const std::vector<bool>& stays,
                                bool wanted) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (stays[i] != wanted) tensors[i].kind = TensorKind::kScalar;
  }
  return tensors;
}

int64_t PackFlight(const Flights& flights, const std::vector<Tensor>& tensors,
                   const std::vector<Op>& ops, const std::vector<bool>& stays,
                   std::vector<int64_t>& offsets) {
  return PackActivations(PackedWhere(tensors, stays, true), ops, flights.sent, offsets);
}

}  // namespace trainyard::plan
