#include "kernels/ops/embedding.h"

#include <climits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/id_chunks.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kRowThreads =
    128;  // a block per row of the table or of the output; rows are 64 to 8k wide

// A block per place (b, t). positions may be null.
__global__ void __launch_bounds__(kRowThreads)
    EmbeddingKernel(const int32_t* ids, const float* tokens, const float* positions, float* y,
                    int64_t time, int64_t width, int64_t vocab) {
  const int64_t place = blockIdx.x;
  const int32_t id = ids[place];
  if (id < 0 || id >= vocab) __trap();  // the loader checked: an error of ours
  const float* token = tokens + id * width;
  const float* position = positions != nullptr ? positions + place % time * width : nullptr;
  for (int64_t c = threadIdx.x; c < width; c += kRowThreads) {
    y[place * width + c] = position != nullptr ? token[c] + position[c] : token[c];
  }
}

// The gradient of a table row is the sum of dy over the places of its id, in order (id_chunks.cuh).
// sorted: [chunks, kChunkPlaces], id << 32 | place within the chunk.
__global__ void __launch_bounds__(kChunkPlaces)
    SortChunksKernel(const int32_t* ids, uint64_t* sorted, int64_t places, int64_t vocab) {
  const int64_t place = int64_t{blockIdx.x} * kChunkPlaces + threadIdx.x;
  uint64_t key = kNoPlace;
  if (place < places) {
    const int32_t id = ids[place];
    if (id < 0 || id >= vocab) __trap();
    key = static_cast<uint64_t>(id) << 32 | threadIdx.x;
  }
  SortChunk(key, sorted + int64_t{blockIdx.x} * kChunkPlaces);
}

// Columns that a thread sums at once, in registers.
constexpr int kColumns = 4;

// A block per table row. dy: [places, width]; dtokens: [vocab, width]. Each column belongs to one
// thread. The searches of kRowThreads chunks run side by side.
__global__ void __launch_bounds__(kRowThreads)
    EmbeddingTokensKernel(const float* dy, const uint64_t* sorted, float* dtokens, int64_t chunks,
                          int64_t width) {
  __shared__ int begin[kRowThreads], end[kRowThreads];
  const uint64_t id = blockIdx.x;
  for (int64_t first_chunk = 0; first_chunk < chunks; first_chunk += kRowThreads) {
    const int here = static_cast<int>(min(chunks - first_chunk, int64_t{kRowThreads}));
    __syncthreads();  // the last round may still be reading
    bool found = false;
    if (static_cast<int>(threadIdx.x) < here) {
      const uint64_t* chunk = sorted + (first_chunk + threadIdx.x) * kChunkPlaces;
      begin[threadIdx.x] = LowerBound(chunk, id << 32);
      end[threadIdx.x] = LowerBound(chunk, (id + 1) << 32);
      found = begin[threadIdx.x] < end[threadIdx.x];
    }
    if (__syncthreads_or(found) == 0) continue;
    for (int64_t first = threadIdx.x; first < width; first += kRowThreads * kColumns) {
      float sum[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int64_t c = first + j * kRowThreads;
        if (c < width) sum[j] = dtokens[blockIdx.x * width + c];
      }
      for (int k = 0; k < here; ++k) {
        const int64_t first_place = (first_chunk + k) * kChunkPlaces;
        const uint64_t* chunk = sorted + first_place;
#pragma unroll 4
        for (int i = begin[k]; i < end[k]; ++i) {
          const float* row = dy + (first_place + static_cast<uint32_t>(chunk[i])) * width;
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            const int64_t c = first + j * kRowThreads;
            if (c < width) sum[j] += row[c];
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int64_t c = first + j * kRowThreads;
        if (c < width) dtokens[blockIdx.x * width + c] = sum[j];
      }
    }
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

void LaunchBackward(Stream& stream, const EmbeddingBackward& op) {
  const int64_t places = op.batch * op.time;
  const int64_t chunks = CeilDiv(places, kChunkPlaces);
  const float* dy = op.dy.As<float>();
  uint64_t* sorted = static_cast<uint64_t*>(stream.scratch);
  Launch(stream, {.grid = Blocks(chunks), .block = dim3(kChunkPlaces)}, SortChunksKernel,
         op.ids.As<int32_t>(), sorted, places, op.vocab);
  Launch(stream, {.grid = Blocks(op.vocab), .block = dim3(kRowThreads)}, EmbeddingTokensKernel, dy,
         sorted, op.dtokens.As<float>(), chunks, op.width);
  if (op.dpositions) {
    const int64_t plane = op.time * op.width;
    Launch(stream, {.grid = Blocks(CeilDiv(plane, kThreads))}, EmbeddingPositionsKernel, dy,
           op.dpositions.As<float>(), op.batch, plane);
  }
}

template <typename Op>
absl::Status CheckExtents(const Op& op) {
  const absl::Status status = RequirePositive(
      "embedding",
      {{"batch", op.batch}, {"time", op.time}, {"width", op.width}, {"vocab", op.vocab}});
  if (status.ok() && (op.vocab > INT_MAX || op.batch * op.time > INT_MAX)) {
    return absl::UnimplementedError("cuda embedding: more than 2^31 - 1 rows");
  }
  return status;
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const EmbeddingForward& op) {
  absl::Status status =
      RequireTypes("embedding", {{.name = "ids", .buffer = op.ids, .dtype = DType::kI32},
                                 {"tokens", op.tokens},
                                 {.name = "positions", .buffer = op.positions, .optional = true},
                                 {"y", op.y}});
  status.Update(CheckExtents(op));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    const float* positions = op.positions ? op.positions.As<float>() : nullptr;
    Launch(stream, {.grid = Blocks(op.batch * op.time), .block = dim3(kRowThreads)},
           EmbeddingKernel, op.ids.As<int32_t>(), op.tokens.As<float>(), positions,
           op.y.As<float>(), op.time, op.width, op.vocab);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const EmbeddingBackward& op) {
  absl::Status status = RequireTypes(
      "embedding backward", {{"dy", op.dy},
                             {.name = "ids", .buffer = op.ids, .dtype = DType::kI32},
                             {"dtokens", op.dtokens},
                             {.name = "dpositions", .buffer = op.dpositions, .optional = true}});
  status.Update(CheckExtents(op));
  if (!status.ok()) return status;
  const int64_t chunks = CeilDiv(op.batch * op.time, kChunkPlaces);
  return Kernel{.launch = [op](Stream& stream) { LaunchBackward(stream, op); },
                .scratch_bytes = static_cast<size_t>(chunks) * kChunkPlaces * sizeof(uint64_t)};
}

}  // namespace trainyard::kernels::cuda
