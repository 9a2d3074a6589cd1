#pragma once

// What a stage of a pipeline keeps of the micro-batches that it has in flight: begun, and not yet
// over and passed on. Pure functions.

#include <cstdint>
#include <limits>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// How many, and where a pass over each is left for the others. Without a pipeline: one, nowhere.
struct Flights {
  static constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

  int64_t count = 1, batches = 1;    // as MostInFlight
  int64_t backward_from = kNowhere;  // the op with which the backward passes begin
  std::vector<StageChunk> chunks;

  bool left_before_backward() const { return backward_from != kNowhere; }
  // The same for other ops, of which as many are the forward passes.
  Flights In(const std::vector<Op>& ops) const;
  // What goes to the stages beside it from chunk `chunk`, and from all of them.
  std::vector<TensorId> SentBy(int64_t chunk) const;
  std::vector<TensorId> Sent() const;
};
Flights FlightsIn(const Plan& plan);

// How long a tensor stays: the number of the chunk of which it must stay while other passes are
// made, since its forward pass leaves it for its backward pass, or it is sent; or one of these.
// (What a pass needs of a neighbour comes right before it.)
inline constexpr int64_t kForOnePass = -1;
inline constexpr int64_t kForAllPasses = -2;  // where there are several chunks: what is uploaded

// By tensor.
std::vector<int64_t> StaysInFlight(const Flights& flights, const std::vector<Tensor>& tensors,
                                   const std::vector<Op>& ops);

// `tensors`, of which PackActivations is to place those alone with stays[id] == wanted: the others
// look as if they had places of their own.
std::vector<Tensor> PackedWhere(std::vector<Tensor> tensors, const std::vector<int64_t>& stays,
                                int64_t wanted);

// Places what stays of one micro-batch in a chunk, from 0 on in each, and returns the bytes of the
// chunk that needs most.
int64_t PackFlight(const Flights& flights, const std::vector<Tensor>& tensors,
                   const std::vector<Op>& ops, const std::vector<int64_t>& stays,
                   std::vector<int64_t>& offsets);

}  // namespace trainyard::plan
