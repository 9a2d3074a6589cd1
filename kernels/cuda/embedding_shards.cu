#include "kernels/ops/embedding_shards.h"

#include <climits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/embedding_rows.cuh"
#include "kernels/cuda/pack.cuh"

namespace trainyard::kernels::cuda {
namespace {

// The rows of a vocabulary from `from` on, in several tables.
struct ShardRows {
  float* first;
  TableList list;
  int64_t from, width;

  // Null if no table has it.
  __device__ float* Of(int64_t id) const {
    int64_t row = id - from;
    if (row < 0) return nullptr;
    for (int64_t t = 0; t < list.count; ++t) {
      if (row < list.rows[t]) return first + list.start[t] + row * width;
      row -= list.rows[t];
    }
    return nullptr;
  }
};

ShardRows ShardRowsOf(const Tables& tables, int64_t from, int64_t width) {
  return {.first = tables.first.As<float>(), .list = tables.list, .from = from, .width = width};
}

// A block per place.
template <int kPackSize>
__global__ void __launch_bounds__(kRowThreads)
    EmbeddingShardsKernel(const int32_t* ids, ShardRows rows, float* y, int64_t vocab) {
  const int64_t place = blockIdx.x;
  const int32_t id = ids[place];
  if (id < 0 || id >= vocab) __trap();  // the loader checked: an error of ours
  const float* const row = rows.Of(id);
  for (int64_t c = threadIdx.x * kPackSize; c < rows.width; c += kRowThreads * kPackSize) {
    Pack<float, kPackSize> read;
    if (row != nullptr) read.Load(row + c);
    float sum[kPackSize];
#pragma unroll
    for (int j = 0; j < kPackSize; ++j) sum[j] = read[j] + 0.0f;  // -0 becomes 0
    read.Set(sum);
    read.Store(y + place * rows.width + c);
  }
}

template <typename Op>
absl::Status CheckPlaces(const Op& op) {
  if (op.vocab <= INT_MAX && op.places <= INT_MAX) return absl::OkStatus();
  return absl::UnimplementedError("cuda embedding of shards: more than 2^31 - 1 rows");
}

bool TablesInPacks(const Tables& tables, int64_t width, const void* y) {
  bool aligned = width % kPack<float> == 0 && Aligned(kPackBytes, {y});
  for (int64_t t = 0; t < tables.list.count; ++t) {
    aligned = aligned && Aligned(kPackBytes, {tables.At(t).data});
  }
  return aligned;
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingShardsForward& op) {
  if (absl::Status ok = CheckPlaces(op); !ok.ok()) return ok;
  return Kernel{.launch = [op](Stream& stream) {
    const bool by_packs = TablesInPacks(op.tables, op.width, op.y.data);
    Launch(stream, {.grid = Blocks(op.places), .block = dim3(kRowThreads)},
           by_packs ? EmbeddingShardsKernel<kPack<float>> : EmbeddingShardsKernel<1>,
           op.ids.As<int32_t>(), ShardRowsOf(op.tables, op.first, op.width), op.y.As<float>(),
           op.vocab);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingShardsBackward& op) {
  if (absl::Status ok = CheckPlaces(op); !ok.ok()) return ok;
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchRowGradients(stream, op.dy.As<float>(), op.ids.As<int32_t>(),
                                         ShardRowsOf(op.gradients, op.first, op.width), op.places,
                                         op.width, op.vocab,
                                         static_cast<uint64_t*>(stream.scratch));
                    },
                .scratch_bytes = SortedIdBytes(op.places)};
}

}  // namespace trainyard::kernels::cuda
