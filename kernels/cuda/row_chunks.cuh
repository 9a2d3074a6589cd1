#pragma once

// Sums over the rows of a matrix, per column, in two launches with a fixed order: first each chunk
// of rows for itself (a block per chunk and 32 columns), then the chunks in order. Chunks depend on
// the number of rows only.

#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {

inline constexpr int kChunkCols = 32;
inline constexpr int kChunkLanes = kThreads / kChunkCols;  // rows of a chunk read at once
inline constexpr int64_t kMinChunkRows = 64;
inline constexpr int64_t kMaxChunks = 256;

struct RowChunks {
  int64_t rows_each = 0;
  int64_t count = 0;
};

inline RowChunks ChunkRows(int64_t rows) {
  int64_t each = CeilDiv(rows, kMaxChunks);
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

// y[c] = sum over k of partial[k, c] (+ y[c] when accumulate); partial: [chunks, cols].
__global__ static void __launch_bounds__(kThreads)
    AddChunksKernel(const float* partial, float* y, int64_t chunks, int64_t cols, bool accumulate) {
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  float sum = 0;
  for (int64_t k = 0; k < chunks; ++k) sum += partial[k * cols + col];
  y[col] = accumulate ? y[col] + sum : sum;
}

inline void LaunchAddChunks(Stream& stream, const float* partial, float* y, int64_t chunks,
                            int64_t cols, bool accumulate) {
  Launch(stream, {.grid = Blocks(CeilDiv(cols, kThreads))}, AddChunksKernel, partial, y, chunks,
         cols, accumulate);
}

}  // namespace trainyard::kernels::cuda
