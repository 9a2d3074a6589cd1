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
