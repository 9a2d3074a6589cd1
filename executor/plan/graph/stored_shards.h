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
  size_t position = 0;  // of the shard in Plan::parameters
  int64_t row = 0, col = 0, rows = 0, cols = 0;
  int64_t offset = 0;  // from the start of the shard to the first element
  int64_t stride = 0;  // in the shard, from one row to the next
};

// A tensor that a checkpoint holds, of which the plan has shards.
struct StoredInShards {
  StoredTensor stored;  // at no place
  std::vector<ShardPiece> pieces;

  int64_t cols() const { return stored.elements() / stored.dims[0]; }
};

// A run of elements of a parameter as they lie in the parameter that is drawn: the whole.
struct DrawnRun {
  int64_t offset = 0, n = 0;  // in the parameter
  int64_t first = 0;          // in the whole
};
std::vector<DrawnRun> DrawnRuns(const Tensor& parameter);

// In the order in which the parameters of the plan begin them.
std::vector<StoredInShards> StoredShards(const Plan& plan);

// Calls f(piece, offset in the shard, at, n) for each run of elements that lie side by side both in
// a shard and in elements [first, first + n) of the stored tensor, `at` elements from its first.
template <typename F>
void ForEachRun(const StoredInShards& tensor, int64_t first, int64_t count, const F& f) {
  const int64_t all = tensor.cols(), end = first + count;
  for (const ShardPiece& piece : tensor.pieces) {
    const int64_t from = std::max(piece.row, first / all);
    const int64_t to = std::min(piece.row + piece.rows, (end + all - 1) / all);
    for (int64_t row = from; row < to; ++row) {
      const int64_t begin = std::max(first, row * all + piece.col);
      const int64_t stop = std::min(end, row * all + piece.col + piece.cols);
      if (begin >= stop) continue;
      const int64_t col = begin - (row * all + piece.col);
      f(piece, piece.offset + (row - piece.row) * piece.stride + col, begin - first, stop - begin);
    }
  }
}

}  // namespace trainyard::plan
