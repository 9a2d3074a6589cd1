#pragma once

// Where every tensor ranges. Pure functions.

#include <cstdint>
#include <vector>

#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

// Of every tensor but copies and gradients in 16 bits: two cache lines, so that one of these at
// half the distance of its parameter begins with one, as the widest vectors like it.
inline constexpr int64_t kAlignment = 128;

inline int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What a tensor that goes with a parameter takes in a run of such: as many elements of its type as
// the parameter, of fp32, takes with what pads it to kAlignment.
int64_t BytesInRun(const Tensor& tensor);

// When a tensor holds something, in numbers of ops of one list, both ends included. Position -1 is
// before the first op (inputs), ops.size() after the last (results).
struct LiveRange {
  TensorId tensor = kNone;
  int64_t first = 0;
  int64_t last = 0;
};

// The live ranges of the activations and inputs that `ops` touches, in order of their first use.
// Inputs are live from -1 on, what is received from the op on that reads it; `results` to the end.
std::vector<LiveRange> LiveRanges(const std::vector<Tensor>& tensors, const std::vector<Op>& ops,
                                  const std::vector<TensorId>& results);

// Bytes at a fixed place, with what completes them to kAlignment on both sides, that are someone
// else's from op `first` to op `last`, both included.
struct ReservedRange {
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t first = 0;
  int64_t last = 0;
};

// Tensors that lie side by side, as parameters do, and are needed by the ops of one or two ranges.
// Between the two their memory is free.
struct TensorRun {
  std::vector<TensorId> tensors;
  OpRange live;
  OpRange again = {};
};

// Gives the activations of `ops`, and `runs`, places in [0, result), writing `offsets`; where a
// range of bytes is reserved, only those that are not live at the same time. Tensors whose live
// ranges overlap do not share a byte, but for an in-place pair at the op where the live range of
// one ends and that of the other begins. Greedy (Pisarchyk & Lee 2020, "Efficient memory management
// for deep neural net inference"), each at the lowest gap: the largest first or, where that needs
// less, those whose live ranges end last first.
int64_t PackActivations(const std::vector<Tensor>& tensors, const std::vector<Op>& ops,
                        const std::vector<TensorId>& results, std::vector<int64_t>& offsets,
                        const std::vector<ReservedRange>& reserved = {},
                        const std::vector<TensorRun>& runs = {});

// Puts `ids` one after the other from `offset` on, each aligned; returns the end.
int64_t PlaceInOrder(const std::vector<Tensor>& tensors, const std::vector<TensorId>& ids,
                     int64_t offset, std::vector<int64_t>& offsets);

}  // namespace trainyard::plan
