#pragma once

// Which elements of a stored tensor lie where in the shards of a parameter.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// A rectangle of a stored tensor, as a matrix [dims[0], all else], that lies in one shard. Counted
// in elements.
struct ShardPiece {
  size_t position = 0;  // of the shard in Plan::of_group
  int64_t row = 0, col = 0, rows = 0, cols = 0;
  int64_t offset = 0;  // from the start of the shard to the first element
  int64_t stride = 0;  // in the shard, from one row to the next
};

// A tensor that a checkpoint holds, and what the parameters of the group have of it. Where shards
// have copies of the same rows, each of them is a piece.
struct StoredInShards {
  StoredTensor stored;  // at no place
  std::vector<ShardPiece> pieces;

  int64_t cols() const { return stored.elements() / stored.dims[0]; }
};

// Of the parameters that other ranks of the group host, and of what goes with them: the state of
// the optimizer, and averages. Where the ranks that host a parameter have shares of its state
// (Plan::state_by_parameter), also of all state of those that this rank hosts.
int64_t BytesElsewhere(const Plan& plan);

// A run of elements of a parameter as they lie in the parameter that is drawn: the whole.
struct DrawnRun {
  int64_t offset = 0, n = 0;  // in the parameter
  int64_t first = 0;          // in the whole
};
std::vector<DrawnRun> DrawnRuns(const Tensor& parameter);

// All of them, in the order in which the parameters of the group (Plan::of_group) begin them: the
// same on every layout.
std::vector<StoredInShards> StoredParameters(const Plan& plan);

// Those of which the plan has shards, or one of several stages has all.
std::vector<StoredInShards> StoredShards(const Plan& plan);

// What goes with each of the group's parameters, from what goes with each of plan.parameters or the
// first of them; `none`: the parameter is another rank's, or has nothing.
template <typename T>
std::vector<T> ByGroup(const Plan& plan, const std::vector<T>& of_parameters, T none) {
  std::vector<T> of_group;
  size_t next = 0;
  for (const TensorId id : plan.of_group) {
    const bool hosted = next < plan.parameters.size() && plan.parameters[next] == id;
    const size_t i = hosted ? next++ : of_parameters.size();
    of_group.push_back(i < of_parameters.size() ? of_parameters[i] : none);
  }
  return of_group;
}

// Calls f(offset in the shard, at, n) for each run of elements that lie side by side both in
// `piece` and in elements [first, first + n) of the stored tensor, `at` elements from its first.
template <typename F>
void ForEachRunOf(const ShardPiece& piece, const StoredInShards& tensor, int64_t first,
                  int64_t count, const F& f) {
  const int64_t all = tensor.cols(), end = first + count;
  if (piece.cols == all && piece.stride == all) {  // its rows lie side by side
    const int64_t origin = piece.row * all;
    const int64_t begin = std::max(first, origin), stop = std::min(end, origin + piece.rows * all);
    if (begin < stop) f(piece.offset + begin - origin, begin - first, stop - begin);
    return;
  }
  const int64_t from = std::max(piece.row, first / all);
  const int64_t to = std::min(piece.row + piece.rows, (end + all - 1) / all);
  for (int64_t row = from; row < to; ++row) {
    const int64_t begin = std::max(first, row * all + piece.col);
    const int64_t stop = std::min(end, row * all + piece.col + piece.cols);
    if (begin >= stop) continue;
    const int64_t col = begin - (row * all + piece.col);
    f(piece.offset + (row - piece.row) * piece.stride + col, begin - first, stop - begin);
  }
}

// Calls f(piece, offset in the shard, at, n) for those of all pieces.
template <typename F>
void ForEachRun(const StoredInShards& tensor, int64_t first, int64_t count, const F& f) {
  for (const ShardPiece& piece : tensor.pieces) {
    ForEachRunOf(piece, tensor, first, count,
                 [&](int64_t offset, int64_t at, int64_t n) { f(piece, offset, at, n); });
  }
}

}  // namespace trainyard::plan
