#pragma once

// The sum of squares in two parts, so that several ranks may each have some of the elements: the
// sums of runs of a fixed length, and their total. Where the leaves come from changes no bit.

#include "kernels/operand.h"

namespace trainyard::kernels {

// The elements of a leaf; the last leaf may have fewer.
inline constexpr int64_t kNormLeaf = 8192;

// leaves[i] (f64) = sum of squares of the elements of x, [n], from i * kNormLeaf on.
template <typename T>
struct SquaredNormLeavesOf {
  static constexpr const char* kName = "squared_norm_leaves";
  T x, leaves;
  int64_t n = 0;
  TY_FIELDS(Read(x), Write(leaves, F64), n)
};
using SquaredNormLeaves = SquaredNormLeavesOf<Buffer>;

// sum[0] (f64) = the sum of leaves, [count] f64: neighbours pairwise until one is left.
template <typename T>
struct AddLeavesOf {
  static constexpr const char* kName = "add_leaves";
  T leaves, sum;
  int64_t count = 0;
  TY_FIELDS(Read(leaves, F64), Write(sum, F64), count)
};
using AddLeaves = AddLeavesOf<Buffer>;

}  // namespace trainyard::kernels
