#include "kernels/ops/embedding.h"

#include <climits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/embedding_rows.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// A block per place (b, t). positions may be null.
template <int kPackSize>
__global__ void __launch_bounds__(kRowThreads)
    EmbeddingKernel(const int32_t* ids, const float* tokens, const float* positions, float* y,
                    int64_t time, int64_t width, int64_t vocab) {
  const int64_t place = blockIdx.x;
  const int32_t id = ids[place];
  if (id < 0 || id >= vocab) __trap();  // the loader checked: an error of ours
  const float* token = tokens + id * width;
  const float* position = positions != nullptr ? positions + place % time * width : nullptr;
  for (int64_t c = threadIdx.x * kPackSize; c < width; c += kRowThreads * kPackSize) {
    Pack<float, kPackSize> of_token, of_position;
    of_token.Load(token + c);
    if (position != nullptr) of_position.Load(position + c);
    float sum[kPackSize];
#pragma unroll
    for (int j = 0; j < kPackSize; ++j) {
      sum[j] = position != nullptr ? of_token[j] + of_position[j] : of_token[j];
    }
    of_token.Set(sum);
    of_token.Store(y + place * width + c);
  }
}

// dpositions[t, c] += sum over b of dy[b, t, c], a thread per (t, c).
__global__ void __launch_bounds__(kThreads)
    EmbeddingPositionsKernel(const float* dy, float* dpositions, int64_t batch, int64_t plane) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= plane) return;
  float sum = dpositions[i];
  for (int64_t b = 0; b < batch; ++b) sum += dy[b * plane + i];
  dpositions[i] = sum;
}

struct OneTable {
  float* first;
  int64_t width;
  __device__ float* Of(int64_t id) const { return first + id * width; }
};

void LaunchBackward(Stream& stream, const EmbeddingBackward& op) {
  const float* dy = op.dy.As<float>();
  LaunchRowGradients(stream, dy, op.ids.As<int32_t>(),
                     OneTable{.first = op.dtokens.As<float>(), .width = op.width},
                     op.batch * op.time, op.width, op.vocab,
                     static_cast<uint64_t*>(stream.scratch));
  if (op.dpositions) {
    const int64_t plane = op.time * op.width;
    Launch(stream, ThreadForEach(plane), EmbeddingPositionsKernel, dy, op.dpositions.As<float>(),
           op.batch, plane);
  }
}

template <typename Op>
absl::Status CheckLimits(const Op& op) {
  if (op.vocab <= INT_MAX && op.batch * op.time <= INT_MAX) return absl::OkStatus();
  return absl::UnimplementedError("cuda embedding: more than 2^31 - 1 rows");
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingForward& op) {
  if (absl::Status ok = CheckLimits(op); !ok.ok()) return ok;
  return Kernel{.launch = [op](Stream& stream) {
    const float* tokens = op.tokens.As<float>();
    const float* positions = OptionalAs<float>(op.positions);
    float* y = op.y.As<float>();
    const bool by_packs =
        op.width % kPack<float> == 0 && Aligned(kPackBytes, {tokens, positions, y});
    Launch(stream, {.grid = Blocks(op.batch * op.time), .block = dim3(kRowThreads)},
           by_packs ? EmbeddingKernel<kPack<float>> : EmbeddingKernel<1>, op.ids.As<int32_t>(),
           tokens, positions, y, op.time, op.width, op.vocab);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingBackward& op) {
  if (absl::Status ok = CheckLimits(op); !ok.ok()) return ok;
  return Kernel{.launch = [op](Stream& stream) { LaunchBackward(stream, op); },
                .scratch_bytes = SortedIdBytes(op.batch * op.time)};
}

}  // namespace trainyard::kernels::cuda
