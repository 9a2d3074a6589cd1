#pragma once

// Chooses among the algorithms of cuBLASLt for a product by measuring them (trial.h).

#include <map>
#include <string>

#include "absl/status/status.h"
#include "kernels/cuda/algorithm_cache.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/trial.h"

namespace trainyard::kernels::cuda {

class MatmulTuner {
 public:
  // `folder` and `machine` are as in AlgorithmCache. `time` outlives the tuner.
  MatmulTuner(cublasLtHandle_t handle, const std::string& folder, const std::string& machine,
              TrialTime& time);

  // Sets the algorithm of `product` to the one that was measured to be the fastest for its shape,
  // or else to the library's first choice.
  absl::Status Choose(Product& product);

  // Measures the algorithms and sets the fastest, unless that was done before or all the time for
  // it is used up. Runs on the operands' own memory, whose content is lost. `product` computes the
  // `piece` of `op`; `bias` is what it adds, in c's type, or null.
  void Measure(Stream& stream, const Matmul& op, const MatmulPiece& piece, void* bias,
               Product& product);

 private:
  cublasLtHandle_t handle_;
  std::map<std::string, cublasLtMatmulAlgo_t> first_;  // the library's choice, by shape
  AlgorithmCache cache_;
  TrialTime& time_;
};

}  // namespace trainyard::kernels::cuda
