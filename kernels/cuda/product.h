#pragma once

// A product of matrices as one call of cuBLASLt. The library's matrices are column-major: our rows
// are its columns. So it computes c^T [n, m] = op(b)^T op(a)^T, with b as its A and a as its B. The
// bias, one per row of c^T, is then exactly its bias epilogue.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/matmul_pieces.h"
#include "kernels/cuda/runtime.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

struct Product {
  MatmulDescriptor descriptor;
  MatrixLayout a, b, c;          // as the library names them
  const void* a_data = nullptr;  // null: a_offset bytes behind the workspace, in the scratch
  int64_t a_offset = 0;
  const void* b_data = nullptr;
  void* c_data = nullptr;
  const void* bias = nullptr;  // set when the product runs: it may lie in scratch
  float alpha = 1, beta = 0;
  cublasLtMatmulAlgo_t algorithm = {};
  std::string shape;  // names all that the choice of algorithms depends on
};

// What lies behind the library's workspace in the scratch of products.
inline char* BehindWorkspace(Stream& stream) {
  return static_cast<char*>(AlignWorkspace(stream.scratch)) + kCublasWorkspace;
}
inline const void* ADataOf(const Product& product, Stream& stream) {
  return product.a_data != nullptr ? product.a_data : BehindWorkspace(stream) + product.a_offset;
}

// Makes a product that has no algorithm yet. A b without data will lie behind the workspace.
absl::StatusOr<Product> MakeProduct(const Matmul& op, const MatmulPiece& piece);

// Algorithms that add in a fixed order, the library's own first choice first. kUnimplemented: there
// is none.
absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> AlgorithmsFor(cublasLtHandle_t handle,
                                                                const Product& product);

cublasStatus_t Enqueue(Stream& stream, cublasLtHandle_t handle, const Product& product);

absl::Status SetBias(const Product& product, const void* bias);

}  // namespace trainyard::kernels::cuda
