#include "kernels/ops/embedding_tables.h"

#include <climits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/id_chunks.cuh"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

// A thread per element of y.
__global__ void __launch_bounds__(kThreads)
    EmbeddingTablesKernel(const int32_t* ids, const float* weights, float* y, TableList tables,
                          int64_t places, int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= places * width) return;
  const int64_t place = i / width, t = place % tables.count;
  const int32_t id = ids[place];
  if (id < 0 || id >= tables.rows[t]) __trap();  // the loader checked: an error of ours
  y[i] = weights[tables.start[t] + id * width + i % width];
}

// sorted: [count, chunks, kChunkPlaces]; a block per chunk of the samples of a table.
__global__ void __launch_bounds__(kChunkPlaces)
    SortTablesKernel(const int32_t* ids, uint64_t* sorted, int64_t samples, int64_t count,
                     int64_t chunks) {
  const int64_t t = blockIdx.x / chunks;
  const int64_t s = blockIdx.x % chunks * kChunkPlaces + threadIdx.x;
  uint64_t key = kNoPlace;
  if (s < samples) {
    const int32_t id = ids[s * count + t];
    if (id < 0) __trap();
    key = static_cast<uint64_t>(id) << 32 | threadIdx.x;
  }
  SortChunk(key, sorted + int64_t{blockIdx.x} * kChunkPlaces);
}

struct RowSums {
  int32_t* ids;            // [samples, count]
  float* grad;             // [samples, count, width]
  const uint64_t* sorted;  // [count, chunks, kChunkPlaces]
  int64_t samples, count, chunks, width;
};

// Whether no sample before `sample` looked up the row whose keys lie in [low, high).
__device__ bool IsFirstOfRow(const uint64_t* chunks, int64_t sample, uint64_t low, uint64_t high) {
  const int64_t own = sample / kChunkPlaces;
  for (int64_t k = 0; k < own; ++k) {
    const int at = LowerBound(chunks + k * kChunkPlaces, low);
    if (at < kChunkPlaces && chunks[k * kChunkPlaces + at] < high) return false;
  }
  const uint64_t* mine = chunks + own * kChunkPlaces;
  return static_cast<uint32_t>(mine[LowerBound(mine, low)]) == sample % kChunkPlaces;
}

// A warp per place. The warp of the first place of a row in a table adds up all places of the row,
// in order of the samples. With kMerge the sum stays at the first place; the warp clears the other
// gradients, and the warps of the other places set their ids to -1. Otherwise the sum goes into the
// row of `gradients`.
template <bool kMerge>
__global__ void __launch_bounds__(kThreads)
    SumRowsKernel(RowSums a, float* gradients, TableList tables) {
  const int64_t place = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (place >= a.samples * a.count) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t sample = place / a.count, t = place % a.count;
  const int32_t id = a.ids[place];
  const uint64_t low = static_cast<uint64_t>(id) << 32, high = low + (uint64_t{1} << 32);
  const uint64_t* chunks = a.sorted + t * a.chunks * kChunkPlaces;
  if (!IsFirstOfRow(chunks, sample, low, high)) {
    if (kMerge) {
      __syncwarp();  // all lanes have read it
      if (lane == 0) a.ids[place] = -1;
    }
    return;
  }

  for (int64_t c = lane; c < a.width; c += kWarp) {
    float* const to =
        kMerge ? a.grad + place * a.width + c : gradients + tables.start[t] + id * a.width + c;
    float sum = *to;
    for (int64_t k = sample / kChunkPlaces; k < a.chunks; ++k) {
      const uint64_t* chunk = chunks + k * kChunkPlaces;
      for (int i = LowerBound(chunk, low); i < kChunkPlaces && chunk[i] < high; ++i) {
        const int64_t other = (k * kChunkPlaces + static_cast<uint32_t>(chunk[i])) * a.count + t;
        if (kMerge && other == place) continue;
        sum += a.grad[other * a.width + c];
        if (kMerge) a.grad[other * a.width + c] = 0;
      }
    }
    *to = sum;
  }
}

// A thread per element of dy.
__global__ void __launch_bounds__(kThreads)
    KeepRowsKernel(const float* dy, const int32_t* ids, float* kept_dy, int32_t* kept_ids,
                   const StepState* state, int64_t samples, int64_t places, int64_t count,
                   int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= places * width) return;
  const int64_t first = state->first_sample % samples * count;
  kept_dy[first * width + i] = dy[i];
  if (i % width == 0) kept_ids[first + i / width] = ids[i / width];
}

int64_t ChunksOf(int64_t samples) { return CeilDiv(samples, kChunkPlaces); }

// Sorts the ids of each table into the scratch (SortedIdBytes), then sums the rows.
template <bool kMerge>
void LaunchRowSums(Stream& stream, const Buffer& ids, const Buffer& grad, int64_t samples,
                   int64_t count, int64_t width, float* gradients, const TableList& tables) {
  const int64_t chunks = ChunksOf(samples);
  uint64_t* sorted = static_cast<uint64_t*>(stream.scratch);
  Launch(stream, {.grid = Blocks(count * chunks), .block = dim3(kChunkPlaces)}, SortTablesKernel,
         ids.As<int32_t>(), sorted, samples, count, chunks);
  const RowSums sums = {.ids = ids.As<int32_t>(),
                        .grad = grad.As<float>(),
                        .sorted = sorted,
                        .samples = samples,
                        .count = count,
                        .chunks = chunks,
                        .width = width};
  Launch(stream, {.grid = Blocks(CeilDiv(samples * count, kThreads / kWarp))},
         SumRowsKernel<kMerge>, sums, gradients, tables);
}

absl::Status CheckLimits(int64_t samples, int64_t count, int64_t width) {
  if (samples * count * width <= INT_MAX) return absl::OkStatus();
  return absl::UnimplementedError("cuda embedding tables: more than 2^31 - 1 elements");
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingTablesForward& op) {
  absl::Status ok = CheckLimits(op.batch, op.tables.list.count, op.width);
  if (!ok.ok()) return ok;
  return Kernel{.launch = [op](Stream& stream) {
    const int64_t places = op.batch * op.tables.list.count;
    Launch(stream, {.grid = Blocks(CeilDiv(places * op.width, kThreads))}, EmbeddingTablesKernel,
           op.ids.As<int32_t>(), op.tables.first.As<float>(), op.y.As<float>(), op.tables.list,
           places, op.width);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingTablesBackward& op) {
  absl::Status ok = CheckLimits(op.batch, op.gradients.list.count, op.width);
  if (!ok.ok()) return ok;
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchRowSums<false>(stream, op.ids, op.dy, op.batch, op.gradients.list.count,
                                           op.width, op.gradients.first.As<float>(),
                                           op.gradients.list);
                    },
                .scratch_bytes = op.gradients.list.count * SortedIdBytes(op.batch)};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const KeepRows& op) {
  absl::Status ok = CheckLimits(op.samples, op.count, op.width);
  if (!ok.ok()) return ok;
  return Kernel{.launch = [op](Stream& stream) {
    const int64_t places = op.batch * op.count;
    Launch(stream, {.grid = Blocks(CeilDiv(places * op.width, kThreads))}, KeepRowsKernel,
           op.dy.As<float>(), op.ids.As<int32_t>(), op.kept_dy.As<float>(),
           op.kept_ids.As<int32_t>(), StepStateOf(op.state), op.samples, places, op.count,
           op.width);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const MergeRows& op) {
  absl::Status ok = CheckLimits(op.samples, op.count, op.width);
  if (!ok.ok()) return ok;
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchRowSums<true>(stream, op.ids, op.grad, op.samples, op.count, op.width,
                                          nullptr, TableList());
                    },
                .scratch_bytes = op.count * SortedIdBytes(op.samples)};
}

}  // namespace trainyard::kernels::cuda
