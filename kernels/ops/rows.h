#pragma once

// What the ranks that share the shards of a layer share out besides: the rows (tokens) of what
// belongs to no shard. Each computes some of the rows, one behind the other.

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = rows [first_row, first_row + rows) of x.
//   x: [all rows, cols] E; y: [rows, cols] E
template <typename T>
struct TakeRowsOf {
  static constexpr const char* kName = "take_rows";
  T x, y;
  int64_t rows = 0, cols = 0, first_row = 0;
  TY_FIELDS(Read(x, E), Write(y, E), rows, cols, MayBeZero(first_row))
};
using TakeRows = TakeRowsOf<Buffer>;

// Rows [first_row, first_row + rows) of y = x. The others are there before: other ranks have sent
// them.
//   x: [rows, cols] E; y: [all rows, cols] E
template <typename T>
struct GatherRowsOf {
  static constexpr const char* kName = "gather_rows";
  T x, y;
  int64_t rows = 0, cols = 0, first_row = 0;
  TY_FIELDS(Read(x, E), Write(y, E), rows, cols, MayBeZero(first_row))
};
using GatherRows = GatherRowsOf<Buffer>;

}  // namespace trainyard::kernels
