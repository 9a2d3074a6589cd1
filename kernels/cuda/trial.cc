#include "kernels/cuda/trial.h"

#include <cuda_runtime.h>

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
// A candidate must take less than this share of the first one's time; a smaller gain is noise.
constexpr float kWorthwhile = 0.98f;

class Stopwatch {
 public:
  Stopwatch() { cudaEventCreate(&start_), cudaEventCreate(&end_); }
  ~Stopwatch() { cudaEventDestroy(start_), cudaEventDestroy(end_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void Start(cudaStream_t stream) const { cudaEventRecord(start_, stream); }
  float StopMilliseconds(cudaStream_t stream) const {
    float milliseconds = 0;
    cudaEventRecord(end_, stream);
    cudaEventSynchronize(end_);
    cudaEventElapsedTime(&milliseconds, start_, end_);
    return milliseconds;
  }

 private:
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

// A digest of what a candidate makes of the operands as they are; nullopt: it does not run.
std::optional<uint64_t> Digest(Stream& stream, const Trial& trial, int candidate, uint64_t* parts) {
  if (!trial.run(candidate)) return std::nullopt;
  std::vector<uint64_t> sums(
      LaunchDigest(stream, trial.result, trial.rows, trial.cols, trial.step, parts));
  const cudaStream_t on = CudaStream::From(stream).handle();
  cudaError_t error = cudaMemcpyAsync(sums.data(), parts, sums.size() * sizeof(uint64_t),
                                      cudaMemcpyDeviceToHost, on);
  if (error == cudaSuccess) error = cudaStreamSynchronize(on);
  if (error != cudaSuccess) return std::nullopt;
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

// The digests of all candidates for the same operands. Sums that cancel tell one order of addition
// from another; sums that do not cancel show how large numbers, a bias and the old value of an
// accumulated result are treated.
std::vector<std::optional<uint64_t>> Digests(Stream& stream, const Trial& trial, uint64_t* parts) {
  std::vector<std::optional<uint64_t>> digests(trial.candidates, 0);
  for (const bool cancel : {true, false}) {
    trial.fill(cancel);
    for (int i = 0; i < trial.candidates; ++i) {
      if (trial.reset) trial.reset(cancel);
      const std::optional<uint64_t> one = Digest(stream, trial, i, parts);
      digests[i] = digests[i] && one ? std::optional(*digests[i] * 31 + *one) : std::nullopt;
    }
  }
  return digests;
}

float Milliseconds(Stream& stream, const Trial& trial, int candidate) {
  const Stopwatch watch;
  const cudaStream_t on = CudaStream::From(stream).handle();
  watch.Start(on);
  for (int i = 0; i < kRuns; ++i) trial.run(candidate);
  return watch.StopMilliseconds(on) / kRuns;
}

}  // namespace

Choice FastestOfSameBits(Stream& stream, const Trial& trial, uint64_t* parts, TrialTime& time) {
  const absl::Time deadline = absl::Now() + time.left;
  const auto late = [&] { return absl::Now() >= deadline; };
  Choice choice;
  if (late()) return choice;
  const std::vector<std::optional<uint64_t>> digests = Digests(stream, trial, parts);
  // The library's own choice; or, if that does not run, the first that does.
  const auto first = std::find_if(digests.begin(), digests.end(),
                                  [](const auto& digest) { return digest.has_value(); });
  if (first != digests.end()) {
    choice.candidate = static_cast<int>(first - digests.begin());
    float least = Milliseconds(stream, trial, choice.candidate) * kWorthwhile;
    for (int i = choice.candidate + 1; i < trial.candidates && !late(); ++i) {
      if (digests[i] != *first) continue;
      const float one = Milliseconds(stream, trial, i);
      if (one < least) choice.candidate = i, least = one;
    }
    choice.complete = !late();
  }
  time.left = deadline - absl::Now();
  return choice;
}

}  // namespace trainyard::kernels::cuda
