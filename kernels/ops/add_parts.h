#pragma once

// What the shards of a matrix product that is cut along its inner dimension share, and what becomes
// of what each of them found.

#include "kernels/ops/embedding_tables.h"

namespace trainyard::kernels {

// y = parts[0] + .. + parts[n - 1] + bias, in fp32 and rounded once.
//   parts: each [rows, cols] E, n in [1, 128]; bias: [cols], optional; y: [rows, cols] E, may be
//   one of the parts
// The parts are added in the binary tree that splits n of them at the largest power of two below n
// (executor/plan/graph/fold_tree.h), so that it does not matter who made them. The bias comes last.
template <typename T>
struct AddPartsOf {
  static constexpr const char* kName = "add_parts";
  TablesOf<T> parts;
  T bias, y;
  int64_t rows = 0, cols = 0;

  const char* Problem() const { return parts.list.Problem(); }
  TY_FIELDS(Read(parts, E), Read(bias, Optional()), Write(y, E), rows, cols)
};
using AddParts = AddPartsOf<Buffer>;

// y = rows [first_row, first_row + rows) of what AddParts makes of the parts `made` and `received`:
// of those that this rank makes it has all rows, and of those that others make it was sent these.
//   made: each [all rows, cols] E; received: each [rows, cols] E; at least one of both
//   bias: [cols], optional; y: [rows, cols] E, may be one of `received`
// In the order of all parts, `made` are those from number first_made on.
template <typename T>
struct AddRowsOf {
  static constexpr const char* kName = "add_rows";
  TablesOf<T> made, received;
  T bias, y;
  int64_t rows = 0, cols = 0, first_row = 0, first_made = 0;

  int64_t count() const { return made.list.count + received.list.count; }
  // Part number i of all, from the first of its rows on that is added up.
  Buffer Part(int64_t i) const {
    if (i < first_made) return received.At(i);
    const int64_t place = i - first_made;
    if (place >= made.list.count) return received.At(i - made.list.count);
    return made.At(place).From(first_row * cols);
  }

  const char* Problem() const {
    if (count() < 1 || count() > TableList::kMost) return "the number of parts is not in [1, 128]";
    return first_made <= received.list.count ? nullptr : "fewer parts come before those made";
  }
  TY_FIELDS(Read(made, Optional(E)), Read(received, Optional(E)), Read(bias, Optional()),
            Write(y, E), rows, cols, MayBeZero(first_row), MayBeZero(first_made))
};
using AddRows = AddRowsOf<Buffer>;

// copies[i] = x, n elements each: x as every shard reads it. The gradients of the copies are parts
// of that of x, which is why they have names of their own.
template <typename T>
struct SpreadOf {
  static constexpr const char* kName = "spread";
  T x;
  TablesOf<T> copies;
  int64_t n = 0;

  const char* Problem() const { return copies.list.Problem(); }
  TY_FIELDS(Read(x, E), Write(copies, E), n)
};
using Spread = SpreadOf<Buffer>;

}  // namespace trainyard::kernels
