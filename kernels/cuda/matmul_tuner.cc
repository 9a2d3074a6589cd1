#include "kernels/cuda/matmul_tuner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/trial_data.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kRuns = 3;
// Of a process: a first step shall not wait for much more. The next process goes on from there.
constexpr absl::Duration kLongest = absl::Seconds(1);
// Less than this is noise.
constexpr float kWorthwhile = 0.98f;

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

// Whether the library takes it for this product: it may come from a file.
bool Fits(cublasLtHandle_t handle, const Product& product, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t checked =
      cublasLtMatmulAlgoCheck(handle, product.descriptor.get(), product.a.get(), product.b.get(),
                              product.c.get(), product.c.get(), &algorithm, &result);
  return checked == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kCublasWorkspace;
}

class Trial {
 public:
  Trial(Stream& stream, cublasLtHandle_t handle, const Matmul& op, const MatmulPiece& piece,
        void* bias, Product& product)
      : stream_(stream), handle_(handle), op_(op), piece_(piece), bias_(bias), product_(product) {}

  // What the algorithms make of the same numbers, in their order: a digest, or nullopt of one that
  // does not run. Sums that cancel tell one order of addition from another; those that do not, what
  // becomes of large numbers, of a bias, and of what is added to.
  std::vector<std::optional<uint64_t>> Digests(
      const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
    std::vector<std::optional<uint64_t>> digests(algorithms.size(), 0);
    for (const bool cancel : {true, false}) {
      FillOperands(cancel);
      for (size_t i = 0; i < algorithms.size(); ++i) {
        const std::optional<uint64_t> one = Digest(algorithms[i], cancel ? 0.0f : 1.0f);
        digests[i] = digests[i] && one ? std::optional(*digests[i] * 31 + *one) : std::nullopt;
      }
    }
    return digests;
  }

  // Milliseconds.
  float Time(const cublasLtMatmulAlgo_t& algorithm) {
    product_.algorithm = algorithm;
    const Stopwatch watch;
    const cudaStream_t on = CudaStream::From(stream_).handle();
    watch.Start(on);
    for (int i = 0; i < kRuns; ++i) Enqueue(stream_, handle_, product_);
    return watch.Stop(on) / kRuns;
  }

 private:
  class Stopwatch {
   public:
    Stopwatch() { cudaEventCreate(&start_), cudaEventCreate(&end_); }
    ~Stopwatch() { cudaEventDestroy(start_), cudaEventDestroy(end_); }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    void Start(cudaStream_t stream) const { cudaEventRecord(start_, stream); }
    float Stop(cudaStream_t stream) const {
      float milliseconds = 0;
      cudaEventRecord(end_, stream);
      cudaEventSynchronize(end_);
      cudaEventElapsedTime(&milliseconds, start_, end_);
      return milliseconds;
    }

   private:
    cudaEvent_t start_ = nullptr, end_ = nullptr;
  };

  // 2^6 times 2^6: what rounding leaves of such sums is no denormal of 16 bits.
  void FillOperands(bool cancel) {
    const bool ta = op_.transpose_a, tb = op_.transpose_b;
    LaunchTrialOperands(stream_,
                        {.x = {const_cast<void*>(product_.b_data), op_.a.dtype},
                         .rows = ta ? piece_.k : piece_.m,
                         .cols = ta ? piece_.m : piece_.k,
                         .step = op_.step_of_a(),
                         .terms_in_rows = ta},
                        {.x = {const_cast<void*>(product_.a_data), op_.b.dtype},
                         .rows = tb ? op_.n : piece_.k,
                         .cols = tb ? piece_.k : op_.n,
                         .step = tb ? op_.k : op_.n,
                         .terms_in_rows = !tb},
                        cancel ? 64.0f : 1.0f, cancel);
  }

  std::optional<uint64_t> Digest(const cublasLtMatmulAlgo_t& algorithm, float rest) {
    product_.algorithm = algorithm;
    LaunchTrialData(stream_, {product_.c_data, op_.c.dtype},
                    (piece_.m - 1) * op_.step_of_c() + op_.n, rest);
    if (bias_ != nullptr) LaunchTrialData(stream_, {bias_, op_.c.dtype}, op_.n, rest);
    if (Enqueue(stream_, handle_, product_) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    auto* const parts = static_cast<uint64_t*>(AlignWorkspace(stream_.scratch));
    std::vector<uint64_t> sums(LaunchDigest(stream_, {product_.c_data, op_.c.dtype}, piece_.m,
                                            op_.n, op_.step_of_c(), parts));
    const cudaStream_t on = CudaStream::From(stream_).handle();
    cudaError_t error = cudaMemcpyAsync(sums.data(), parts, sums.size() * sizeof(uint64_t),
                                        cudaMemcpyDeviceToHost, on);
    if (error == cudaSuccess) error = cudaStreamSynchronize(on);
    if (error != cudaSuccess) return std::nullopt;
    return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  }

  Stream& stream_;
  cublasLtHandle_t handle_;
  const Matmul& op_;
  const MatmulPiece& piece_;
  void* const bias_;
  Product& product_;
};

}  // namespace

MatmulTuner::MatmulTuner(cublasLtHandle_t handle, const std::string& folder,
                         const std::string& machine)
    : handle_(handle), cache_(folder, machine), left_(kLongest) {}

absl::Status MatmulTuner::Choose(Product& product) {
  const auto algorithms = AlgorithmsFor(handle_, product);
  if (!algorithms.ok()) return algorithms.status();
  product.algorithm = algorithms->front();
  const AlgorithmBytes* const known = cache_.Find(product.shape, BytesOf(product.algorithm));
  if (known == nullptr) return absl::OkStatus();
  const cublasLtMatmulAlgo_t measured = AlgorithmOf(*known);
  if (Fits(handle_, product, measured)) product.algorithm = measured;
  return absl::OkStatus();
}

void MatmulTuner::Measure(Stream& stream, const Matmul& op, const MatmulPiece& piece, void* bias,
                          Product& product) {
  const auto algorithms = AlgorithmsFor(handle_, product);
  if (!algorithms.ok() || algorithms->size() == 1) return;
  const cublasLtMatmulAlgo_t& first = algorithms->front();
  // A process that waited for its work may find here what another measured meanwhile.
  if (cache_.Find(product.shape, BytesOf(first)) == nullptr) cache_.LoadOnce();
  if (cache_.Find(product.shape, BytesOf(first)) != nullptr) {
    Choose(product).IgnoreError();
    return;
  }
  const absl::Time deadline = absl::Now() + left_;
  const auto late = [&] { return absl::Now() >= deadline; };
  if (late()) return;
  const cublasLtMatmulAlgo_t* fastest = &first;
  Trial trial(stream, handle_, op, piece, bias, product);
  const std::vector<std::optional<uint64_t>> digests = trial.Digests(*algorithms);
  if (digests.front()) {
    float least = trial.Time(first) * kWorthwhile;
    for (size_t i = 1; i < algorithms->size() && !late(); ++i) {
      if (digests[i] != digests.front()) continue;
      const float time = trial.Time((*algorithms)[i]);
      if (time < least) fastest = &(*algorithms)[i], least = time;
    }
    if (!late()) cache_.Put(product.shape, BytesOf(first), BytesOf(*fastest));
  }
  product.algorithm = *fastest;
  left_ = deadline - absl::Now();
  cache_.Save();
}

}  // namespace trainyard::kernels::cuda
