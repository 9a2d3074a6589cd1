#include "kernels/cuda/matmul_tuner.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/trial_data.h"

namespace trainyard::kernels::cuda {
namespace {

AlgorithmBytes BytesOf(const cublasLtMatmulAlgo_t& algorithm) {
  AlgorithmBytes bytes{};
  static_assert(sizeof(algorithm.data) == sizeof(bytes));
  std::copy(std::begin(algorithm.data), std::end(algorithm.data), bytes.begin());
  return bytes;
}

cublasLtMatmulAlgo_t AlgorithmOf(const AlgorithmBytes& bytes) {
  cublasLtMatmulAlgo_t algorithm = {};
  std::copy(bytes.begin(), bytes.end(), std::begin(algorithm.data));
  return algorithm;
}

// Whether the library accepts `algorithm`, which may come from a file, for this product.
bool Fits(cublasLtHandle_t handle, const Product& product, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t checked =
      cublasLtMatmulAlgoCheck(handle, product.descriptor.get(), product.a.get(), product.b.get(),
                              product.c.get(), product.c.get(), &algorithm, &result);
  return checked == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kCublasWorkspace;
}

// With `cancel` operands reach 2^6 and their products 2^12, so that the rounding errors of the sums
// are no 16-bit denormals.
void FillOperands(Stream& stream, const Matmul& op, const MatmulPiece& piece,
                  const Product& product, bool cancel) {
  const bool ta = op.transpose_a, tb = op.transpose_b;
  LaunchTrialOperands(stream,
                      {.x = {const_cast<void*>(product.b_data), op.a.dtype},
                       .rows = ta ? piece.k : piece.m,
                       .cols = ta ? piece.m : piece.k,
                       .step = op.a_row_stride(),
                       .terms_in_rows = ta},
                      {.x = {const_cast<void*>(ADataOf(product, stream)), op.b.dtype},
                       .rows = tb ? op.n : piece.k,
                       .cols = tb ? piece.k : op.n,
                       .step = tb ? op.k : op.n,
                       .terms_in_rows = !tb},
                      cancel ? 64.0f : 1.0f, cancel);
}

}  // namespace

MatmulTuner::MatmulTuner(cublasLtHandle_t handle, const std::string& folder,
                         const std::string& machine, TrialTime& time)
    : handle_(handle), cache_(folder, machine), time_(time) {}

absl::Status MatmulTuner::Choose(Product& product) {
  const auto [first, is_new] = first_.try_emplace(product.shape);
  if (is_new) {
    const auto algorithms = AlgorithmsFor(handle_, product);
    if (!algorithms.ok()) {
      first_.erase(first);
      return algorithms.status();
    }
    first->second = algorithms->front();
  }
  product.algorithm = first->second;
  const AlgorithmBytes* const known = cache_.Find(product.shape, BytesOf(product.algorithm));
  if (known == nullptr) return absl::OkStatus();
  const cublasLtMatmulAlgo_t measured = AlgorithmOf(*known);
  if (Fits(handle_, product, measured)) product.algorithm = measured;
  return absl::OkStatus();
}

void MatmulTuner::Measure(Stream& stream, const Matmul& op, const MatmulPiece& piece, void* bias,
                          Product& product) {
  const auto algorithms = AlgorithmsFor(handle_, product);
  if (bias != nullptr && !SetBias(product, bias).ok()) return;
  if (!algorithms.ok() || algorithms->size() == 1) return;
  const cublasLtMatmulAlgo_t& first = algorithms->front();
  // Another process may have measured it since this one read the file.
  if (cache_.Find(product.shape, BytesOf(first)) == nullptr) cache_.LoadOnce();
  if (cache_.Find(product.shape, BytesOf(first)) != nullptr) {
    Choose(product).IgnoreError();
    return;
  }
  const Trial trial = {
      .candidates = static_cast<int>(algorithms->size()),
      .fill = [&](bool cancel) { FillOperands(stream, op, piece, product, cancel); },
      .reset =
          [&](bool cancel) {
            const float rest = cancel ? 0.0f : 1.0f;
            LaunchTrialData(stream, {product.c_data, op.c.dtype},
                            (piece.m - 1) * op.c_row_stride() + op.n, rest);
            if (bias != nullptr) LaunchTrialData(stream, {bias, op.c.dtype}, op.n, rest);
          },
      .run =
          [&](int candidate) {
            product.algorithm = (*algorithms)[candidate];
            return Enqueue(stream, handle_, product) == CUBLAS_STATUS_SUCCESS;
          },
      .result = {product.c_data, op.c.dtype},
      .rows = piece.m,
      .cols = op.n,
      .step = op.c_row_stride()};
  auto* const parts = static_cast<uint64_t*>(AlignWorkspace(stream.scratch));
  const Choice choice = FastestOfSameBits(stream, trial, parts, time_);
  product.algorithm = (*algorithms)[choice.candidate];
  if (choice.complete) {
    cache_.Put(product.shape, BytesOf(first), BytesOf(product.algorithm));
    cache_.Save();
  }
}

}  // namespace trainyard::kernels::cuda
