#include "kernels/cuda/matmul_pieces.h"

#include <algorithm>

#include "absl/status/status.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::kernels::cuda {
namespace {

// A second call is not worth it for fewer rows.
constexpr int64_t kLeastWholeRows = 1024;

}  // namespace

absl::StatusOr<std::vector<MatmulPiece>> CutMatmul(const Matmul& op, int64_t max_elements) {
  int64_t m_each = std::min(op.m, max_elements / op.c_row_stride());  // c: [m, n]
  int64_t k_each = op.k;
  if (op.transpose_a) {
    k_each = std::min(k_each, max_elements / op.a_row_stride());  // a: [k, m]
  } else {
    m_each = std::min(m_each, max_elements / op.a_row_stride());  // a: [m, k]
  }
  if (!op.transpose_b) {
    k_each = std::min(k_each, max_elements / op.n);  // b: [k, n]
  } else if (op.n > max_elements / op.k) {           // b: [n, k]
    return absl::UnimplementedError("cuda matmul: a transposed b of 2^31 elements or more");
  }
  if (m_each == 0 || k_each == 0) {
    return absl::UnimplementedError("cuda matmul: a row of 2^31 elements or more");
  }
  // Rows of c are columns of a, which are read 16 bytes at a time: those left over, if the others
  // are, go by themselves.
  const bool is_read_whole =
      op.transpose_a && SizeOf(op.a.dtype) == 2 && op.a_row_stride() % kProductGrain == 0;
  const int64_t whole =
      is_read_whole && op.m > kLeastWholeRows ? op.m / kProductGrain * kProductGrain : op.m;
  std::vector<MatmulPiece> pieces;
  const auto add_rows = [&](int64_t begin, int64_t end) {
    for (int64_t m0 = begin; m0 < end; m0 += m_each) {
      for (int64_t k0 = 0; k0 < op.k; k0 += k_each) {
        pieces.push_back({m0, std::min(m_each, end - m0), k0, std::min(k_each, op.k - k0)});
      }
    }
  };
  add_rows(0, whole);
  add_rows(whole, op.m);
  return pieces;
}

}  // namespace trainyard::kernels::cuda
