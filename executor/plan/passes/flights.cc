#include "executor/plan/passes/flights.h"

#include <algorithm>
#include <utility>

#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/stages.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// The pass of each of `ops`: which chunk goes through them, and whether forwards.
struct PassOfOp {
  int64_t chunk = 0;
  bool forward = true;
  friend bool operator==(const PassOfOp&, const PassOfOp&) = default;
};

std::vector<PassOfOp> PassesOfOps(const Flights& flights, size_t ops) {
  std::vector<PassOfOp> passes(ops);
  for (size_t chunk = 0; chunk < flights.chunks.size(); ++chunk) {
    for (const bool forward : {true, false}) {
      const StageChunk& of = flights.chunks[chunk];
      const Run& run = forward ? of.forward : of.backward;
      std::fill(passes.begin() + run.first, passes.begin() + run.end,
                PassOfOp{.chunk = static_cast<int64_t>(chunk), .forward = forward});
    }
  }
  return passes;
}

// Where there are several chunks.
std::vector<int64_t> StaysOfChunks(const Flights& flights, const std::vector<Tensor>& tensors,
                                   const std::vector<Op>& ops) {
  std::vector<int64_t> stays(tensors.size(), kForOnePass);
  const std::vector<PassOfOp> passes = PassesOfOps(flights, ops.size());
  for (const LiveRange& range : LiveRanges(tensors, ops, {})) {
    if (tensors[range.tensor].kind == TensorKind::kInput) {
      stays[range.tensor] = kForAllPasses;
      continue;
    }
    const PassOfOp &first = passes[range.first], &last = passes[range.last];
    TY_CHECK(first.chunk == last.chunk, tensors[range.tensor].name, " is of chunks ", first.chunk,
             " and ", last.chunk);
    if (first != last) stays[range.tensor] = first.chunk;
  }
  for (size_t chunk = 0; chunk < flights.chunks.size(); ++chunk) {
    for (const TensorId sent : flights.SentBy(static_cast<int64_t>(chunk))) {
      stays[sent] = static_cast<int64_t>(chunk);
    }
  }
  return stays;
}

}  // namespace

std::vector<TensorId> Flights::SentBy(int64_t chunk) const {
  std::vector<TensorId> sent;
  for (const TensorId id : {chunks[chunk].links.to_after, chunks[chunk].links.to_before}) {
    if (id != kNone) sent.push_back(id);
  }
  return sent;
}

std::vector<TensorId> Flights::Sent() const {
  std::vector<TensorId> sent;
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    for (const TensorId id : SentBy(static_cast<int64_t>(chunk))) sent.push_back(id);
  }
  return sent;
}

Flights Flights::In(const std::vector<Op>& ops) const {
  Flights others = *this;
  if (left_before_backward()) FindPasses(backward_from, ops, others.chunks);
  return others;
}

Flights FlightsIn(const Plan& plan) {
  Flights flights = {
      .count = plan.in_flight.flights, .batches = plan.in_flight.batches, .chunks = plan.chunks};
  const bool at_once = plan.chunks.size() == 1 && plan.chunks[0].links.from_after == kNone;
  if (!at_once) flights.backward_from = plan.backward_from;
  return flights;
}

std::vector<int64_t> StaysInFlight(const Flights& flights, const std::vector<Tensor>& tensors,
                                   const std::vector<Op>& ops) {
  if (flights.chunks.size() > 1) return StaysOfChunks(flights, tensors, ops);
  std::vector<int64_t> stays(tensors.size(), kForOnePass);
  if (flights.left_before_backward()) {
    const int64_t cut = flights.backward_from;
    for (const LiveRange& range : LiveRanges(tensors, ops, {})) {
      if (range.first < cut && cut <= range.last) stays[range.tensor] = 0;
    }
  }
  for (const TensorId sent : flights.Sent()) stays[sent] = 0;
  return stays;
}

std::vector<Tensor> PackedWhere(std::vector<Tensor> tensors, const std::vector<int64_t>& stays,
                                int64_t wanted) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (stays[i] != wanted) tensors[i].kind = TensorKind::kScalar;
  }
  return tensors;
}

int64_t PackFlight(const Flights& flights, const std::vector<Tensor>& tensors,
                   const std::vector<Op>& ops, const std::vector<int64_t>& stays,
                   std::vector<int64_t>& offsets) {
  int64_t most = 0;
  for (size_t c = 0; c < flights.chunks.size(); ++c) {
    const auto chunk = static_cast<int64_t>(c);
    most = std::max(most, PackActivations(PackedWhere(tensors, stays, chunk), ops,
                                          flights.SentBy(chunk), offsets));
  }
  return most;
}

}  // namespace trainyard::plan
