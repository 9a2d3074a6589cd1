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

  int64_t count = 1;
  int64_t backward_from = kNowhere;  // the op with which the backward pass begins
  std::vector<TensorId> sent;        // to the stages beside it

  bool left_before_backward() const { return backward_from != kNowhere; }
};
Flights FlightsIn(const Plan& plan);

// By tensor: whether it must stay while other micro-batches are computed: what the forward pass
// leaves for the backward pass, and what is sent. (What a pass needs of the loader or a neighbour
// comes right before it.)
std::vector<bool> StaysInFlight(const Flights& flights, const std::vector<Tensor>& tensors,
                                const std::vector<Op>& ops);

// `tensors`, of which PackActivations is to place those alone with stays[id] == wanted: the others
// look as if they had places of their own.
std::vector<Tensor> PackedWhere(std::vector<Tensor> tensors, const std::vector<bool>& stays,
                                bool wanted);

// Places what stays of one micro-batch, from 0 on, and returns the bytes.
int64_t PackFlight(const Flights& flights, const std::vector<Tensor>& tensors,
                   const std::vector<Op>& ops, const std::vector<bool>& stays,
                   std::vector<int64_t>& offsets);

}  // namespace trainyard::plan
