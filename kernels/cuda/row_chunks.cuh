#pragma once

// Sums over the rows of a matrix, per column, in two launches with a fixed order: first each chunk
// of rows for itself (a block per chunk and 32 columns), then the chunks in order. Chunks depend on
// the number of rows only.

#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {

inline constexpr int kChunkCols = 32;
inline constexpr int kChunkLanes = kThreads / kChunkCols;  // rows of a chunk read at once
inline constexpr int64_t kMinChunkRows = 64;

struct RowChunks {
  int64_t rows_each = 0;
  int64_t count = 0;
};

inline RowChunks ChunkRows(int64_t rows) {
  int64_t each = CeilDiv(rows, kMostRowChunks);
  if (each < kMinChunkRows) each = kMinChunkRows;
  return {.rows_each = each, .count = CeilDiv(rows, each)};
}

// Adds up what the kChunkLanes threads of a column hold, in order; the result is in lane 0. All
// threads of the block call. tile: [kChunkLanes][kChunkCols], in shared memory.
__device__ inline float SumOverLanes(float value, float* tile) {
  const int column = threadIdx.x % kChunkCols, lane = threadIdx.x / kChunkCols;
  __syncthreads();  // an earlier call may still be reading
  tile[lane * kChunkCols + column] = value;
  __syncthreads();
  float sum = 0;
  if (lane == 0) {
    for (int i = 0; i < kChunkLanes; ++i) sum += tile[i * kChunkCols + column];
  }
  return sum;
}

// y[c] = sum over k of partial[k, c] (+ y[c] when accumulate); partial: [chunks, cols]. Then
// `next`, unless it is null, from what follows partial. Block: 32 columns; a lane adds up every
// eighth chunk.
__global__ static void __launch_bounds__(kThreads)
    AddChunksKernel(const float* partial, float* y, float* next, int64_t chunks, int64_t cols,
                    int64_t col_tiles, bool accumulate) {
  __shared__ float tile[kChunkLanes * kChunkCols];
  const bool second = int64_t{blockIdx.x} >= col_tiles;
  const int64_t col = int64_t{blockIdx.x} % col_tiles * kChunkCols + threadIdx.x % kChunkCols;
  const int lane = threadIdx.x / kChunkCols;
  if (second) partial += chunks * cols;
  float sum = 0;
  if (col < cols) {
#pragma unroll 8
    for (int64_t k = lane; k < chunks; k += kChunkLanes) sum += partial[k * cols + col];
  }
  sum = SumOverLanes(sum, tile);
  if (lane > 0 || col >= cols) return;
  float* const to = (second ? next : y) + col;
  *to = accumulate ? *to + sum : sum;
}

inline void LaunchAddChunks(Stream& stream, const float* partial, float* y, int64_t chunks,
                            int64_t cols, bool accumulate, float* next = nullptr) {
  const int64_t col_tiles = CeilDiv(cols, kChunkCols);
  Launch(stream, {.grid = Blocks(col_tiles * (next != nullptr ? 2 : 1))}, AddChunksKernel, partial,
         y, next, chunks, cols, col_tiles, accumulate);
}

}  // namespace trainyard::kernels::cuda
