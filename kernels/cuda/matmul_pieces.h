#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/matmul.h"

namespace trainyard::kernels::cuda {

// cuBLASLt fails on fp32 operands of 2^31 elements: larger products are done in pieces.
inline constexpr int64_t kMaxMatmulElements = (int64_t{1} << 31) - 1;

// Rows [m0, m0 + m) of c, terms [k0, k0 + k) of their sum.
struct MatmulPiece {
  int64_t m0 = 0, m = 0, k0 = 0, k = 0;
};

// The pieces that make up the product, those of one row block in order of k0, such that no operand
// of a piece spans more than `max_elements`. An operand spans whole stored rows, also where the
// piece takes only some of their columns. kUnimplemented when there is no such cut.
absl::StatusOr<std::vector<MatmulPiece>> CutMatmul(const Matmul& op, int64_t max_elements);

}  // namespace trainyard::kernels::cuda
