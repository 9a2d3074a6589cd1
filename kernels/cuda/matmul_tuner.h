#pragma once

// Chooses among the algorithms of cuBLASLt for a product by measuring them. Only those are taken
// that give the bits of the library's own first choice: what was measured, here or elsewhere, shows
// in the time a step takes and in nothing else.

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/cuda/algorithm_cache.h"
#include "kernels/cuda/product.h"

namespace trainyard::kernels::cuda {

class MatmulTuner {
 public:
  // As AlgorithmCache of `folder` and `machine`.
  MatmulTuner(cublasLtHandle_t handle, const std::string& folder, const std::string& machine);

  // The algorithm that was measured for such a product, or else the library's first choice.
  absl::Status Choose(Product& product);

  // Measures, unless that was done or all the time for it is used up; on the operands' own memory,
  // whose content is lost. `piece` of `op` is what the product computes; `bias` is what it adds, in
  // c's type, or null.
  void Measure(Stream& stream, const Matmul& op, const MatmulPiece& piece, void* bias,
               Product& product);

 private:
  cublasLtHandle_t handle_;
  AlgorithmCache cache_;
  absl::Duration left_;
};

}  // namespace trainyard::kernels::cuda
