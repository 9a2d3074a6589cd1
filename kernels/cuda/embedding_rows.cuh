#pragma once

// The gradient of look-ups: each row of a table, or of several, gets the sum of dy over the places
// of its id, in order (id_chunks.cuh).

#include "kernels/cuda/id_chunks.cuh"

namespace trainyard::kernels::cuda {

inline constexpr int kRowThreads =
    128;  // a block per row of the table or of the output; rows are 64 to 8k wide

// sorted: [chunks, kChunkPlaces], id << 32 | place within the chunk.
__global__ static void __launch_bounds__(kChunkPlaces)
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

// Columns that a thread sums, in registers, and how many places of an id it loads at once: the
// places of an id are added in series, and the most frequent id ends last.
inline constexpr int kColumns = 4, kPlacesAtOnce = 8;
inline constexpr int kTileColumns = kRowThreads * kColumns;

// The positions [begin, end) of an id in a sorted chunk. Most chunks do not have it: one search
// tells.
struct IdRange {
  int begin = 0, end = 0;

  __device__ IdRange(const uint64_t* chunk, uint64_t id) {
    begin = end = LowerBound(chunk, id << 32);
    if (begin < kChunkPlaces && chunk[begin] >> 32 == id) end = LowerBound(chunk, (id + 1) << 32);
  }
};

// The last k with before[k] <= n; before: [kRowThreads], in ascending order, from 0.
__device__ inline int LastNotAfter(const int* before, int n) {
  int low = 0, high = kRowThreads;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (before[middle] <= n) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// sum[j] += dy[place, j * kRowThreads] over `count` places, in order; dy is at this thread's first
// column, from which on there are `left` columns.
__device__ inline void AddPlaces(const float* dy, int64_t width, int left, const int* places,
                                 int count, float (&sum)[kColumns]) {
  for (int i = 0; i < count; i += kPlacesAtOnce) {
    float read[kPlacesAtOnce][kColumns];
#pragma unroll
    for (int k = 0; k < kPlacesAtOnce; ++k) {
      if (i + k >= count) continue;
      const float* const from = dy + places[i + k] * width;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (j * kRowThreads < left) read[k][j] = from[j * kRowThreads];
      }
    }
#pragma unroll
    for (int k = 0; k < kPlacesAtOnce; ++k) {
      if (i + k >= count) break;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (j * kRowThreads < left) sum[j] += read[k][j];
      }
    }
  }
}

// A block per place in the sorted chunks and tile of columns. If the place's id occurs nowhere
// earlier, the block sums that id's table row; otherwise it has nothing to do. dy: [places, width].
// rows.Of(id): where the gradient of that row begins, null if it is someone else's. Each column
// belongs to one thread. The searches of kRowThreads chunks run side by side.
template <typename Rows>
__global__ void __launch_bounds__(kRowThreads, 8)
    EmbeddingTokensKernel(const float* dy, const uint64_t* sorted, Rows rows, int64_t chunks,
                          int64_t width, int tiles) {
  __shared__ int begin[kRowThreads], counts[kRowThreads], before[kRowThreads];
  __shared__ int places[kRowThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t place = blockIdx.x / tiles, first = blockIdx.x % tiles * kTileColumns + thread;
  const uint64_t key = sorted[place];
  const uint64_t id = key >> 32;
  if (key == kNoPlace) return;
  const int64_t own = place / kChunkPlaces;
  if (place % kChunkPlaces > 0 && sorted[place - 1] >> 32 == id) return;
  for (int64_t round = 0; round < own; round += kRowThreads) {
    const int64_t chunk = round + thread;
    bool earlier = false;
    if (chunk < own) {
      const IdRange range(sorted + chunk * kChunkPlaces, id);
      earlier = range.begin < range.end;
    }
    if (__syncthreads_or(earlier) != 0) return;
  }

  float* const row = rows.Of(static_cast<int64_t>(id));
  if (row == nullptr) return;
  float sum[kColumns] = {};
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    if (first + j * kRowThreads < width) sum[j] = row[first + j * kRowThreads];
  }
  for (int64_t first_chunk = own; first_chunk < chunks; first_chunk += kRowThreads) {
    int count = 0;
    if (thread < chunks - first_chunk) {
      const IdRange range(sorted + (first_chunk + thread) * kChunkPlaces, id);
      begin[thread] = range.begin;
      count = range.end - range.begin;
    }
    counts[thread] = count;
    if (__syncthreads_or(count > 0) == 0) continue;
    int earlier = 0;
    for (int k = 0; k < thread; ++k) earlier += counts[k];
    before[thread] = earlier;
    __syncthreads();
    const int all = before[kRowThreads - 1] + counts[kRowThreads - 1];
    for (int done = 0; done < all; done += kRowThreads) {
      if (done + thread < all) {
        const int k = LastNotAfter(before, done + thread);
        const int64_t first_place = (first_chunk + k) * kChunkPlaces;
        const uint64_t found = sorted[first_place + begin[k] + (done + thread - before[k])];
        places[thread] = static_cast<int>(first_place + static_cast<uint32_t>(found));
      }
      __syncthreads();
      AddPlaces(dy + first, width, static_cast<int>(min(width - first, int64_t{kTileColumns})),
                places, min(all - done, kRowThreads), sum);
      __syncthreads();
    }
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    if (first + j * kRowThreads < width) row[first + j * kRowThreads] = sum[j];
  }
}

// ids: [places], each in [0, vocab); `sorted` is scratch of SortedIdBytes(places).
template <typename Rows>
void LaunchRowGradients(Stream& stream, const float* dy, const int32_t* ids, const Rows& rows,
                        int64_t places, int64_t width, int64_t vocab, uint64_t* sorted) {
  const int64_t chunks = CeilDiv(places, kChunkPlaces);
  Launch(stream, {.grid = Blocks(chunks), .block = dim3(kChunkPlaces)}, SortChunksKernel, ids,
         sorted, places, vocab);
  const auto tiles = static_cast<int>(CeilDiv(width, kTileColumns));
  Launch(stream, {.grid = Blocks(chunks * kChunkPlaces * tiles), .block = dim3(kRowThreads)},
         EmbeddingTokensKernel<Rows>, dy, sorted, rows, chunks, width, tiles);
}

}  // namespace trainyard::kernels::cuda
