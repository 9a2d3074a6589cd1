#pragma once

// Matrices whose columns each have something of their own, [rows, cols], gone over by blocks: a
// block has a chunk of rows of a tile of at most 32 packs of columns. Its threads stand as lanes of
// rows; each keeps to its columns, so that it reads what belongs to them once, and takes every
// lanes-th row, a few at once.
//
// Sums over rows go per thread, then per block over its lanes in order, then, in a second launch,
// over the chunks. All of this is a function of rows, cols and the elements' type.

#include <algorithm>

#include "kernels/cuda/pack.cuh"

namespace trainyard::kernels::cuda {

inline constexpr int kTilePacks = kWarp;

struct ColumnTiles {
  int64_t rows = 0, cols = 0;
  int64_t row_step = 0;   // elements from row to row
  int width = 0;          // of a tile, in packs
  int lanes = 0;          // rows that a block reads at once
  int tiles = 0;          // side by side
  int64_t rows_each = 0;  // of a chunk
  int chunks = 0;         // one below the other
  bool by_packs = false;  // every operand begins where packs do; else they are read by elements

  dim3 grid() const { return Blocks(int64_t{tiles} * chunks); }
};

// Packs of `pack` elements, which divides cols; chunks of whole rounds of `rows_at_once` rows a
// lane, as many as make about `blocks` blocks, of at least `least_rounds` where there are that
// many.
inline ColumnTiles TileColumns(int64_t rows, int64_t cols, int pack, int rows_at_once,
                               int64_t blocks, bool by_packs, int64_t least_rounds = 1) {
  const int64_t packs = cols / pack;
  ColumnTiles t{.rows = rows, .cols = cols, .row_step = cols, .by_packs = by_packs};
  t.tiles = static_cast<int>(CeilDiv(packs, kTilePacks));
  t.width = static_cast<int>(CeilDiv(packs, t.tiles));
  t.lanes = kThreads / t.width;
  const int64_t round = int64_t{t.lanes} * rows_at_once;
  const int64_t rounds = CeilDiv(rows, round);
  const int64_t most = std::max<int64_t>(1, rounds / least_rounds);
  t.rows_each = CeilDiv(rounds, std::clamp<int64_t>(blocks / t.tiles, 1, most)) * round;
  t.chunks = static_cast<int>(CeilDiv(rows, t.rows_each));
  return t;
}

// What a thread has of its block's tile.
template <int kPackSize>
struct TilePlace {
  static constexpr int kCols = kTilePacks * kPackSize;  // the most of a tile

  __device__ explicit TilePlace(const ColumnTiles& t) {
    const int thread = static_cast<int>(threadIdx.x);
    const int block = static_cast<int>(blockIdx.x), tile = block % t.tiles;
    chunk = block / t.tiles;
    first_col = int64_t{tile} * t.width * kPackSize;
    cols = static_cast<int>(min(int64_t{t.width} * kPackSize, t.cols - first_col));
    lane = thread / t.width;
    col = (thread - lane * t.width) * kPackSize;
    first_row = chunk * t.rows_each;
    chunk_rows = static_cast<int>(min(t.rows_each, t.rows - first_row));
    each = chunk_rows / t.lanes;
    more = chunk_rows % t.lanes;
    rows = lane < t.lanes && col < cols ? RowsOf(lane) : 0;
    begin = (first_row + lane) * t.row_step + first_col + col;
    step = t.lanes * t.row_step;
  }

  // Of the chunk, by a thread of lane `of`.
  __device__ int RowsOf(int of) const { return each + (of < more ? 1 : 0); }

  int64_t chunk, first_col, first_row;
  int cols, chunk_rows;  // of this tile and chunk
  int lane, col;         // col: from first_col on
  int each, more;        // rows of every lane, and lanes of one more
  int rows;              // of this thread
  int64_t begin, step;   // its first element, and from one of its rows to the next
};

// The packs at `at`, `at + step` ... of the first `rows` of kRows rows; the others are left zero.
template <int kRows, int kPackSize, typename T>
__device__ void LoadRows(Pack<T, kPackSize> (&packs)[kRows], const T* at, int64_t step, int rows,
                         bool by_packs) {
  if (by_packs) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i < rows) packs[i].Load(at + i * step);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i < rows) packs[i].Gather(at + i * step);
    }
  }
}

template <int kPackSize, typename T>
__device__ void StoreRow(const Pack<T, kPackSize>& pack, T* at, bool by_packs) {
  if (by_packs) {
    pack.Store(at);
  } else {
    pack.Scatter(at);
  }
}

// What each thread holds for its columns, into shared memory: by lane, [lanes, width * kPackSize].
// All threads of the block call; nobody reads `shared` (kThreads * kPackSize floats) any more.
template <int kPackSize>
__device__ void ShowLanes(const float (&values)[kPackSize], const ColumnTiles& t,
                          const TilePlace<kPackSize>& place, float* shared) {
  if (place.lane >= t.lanes) return;
  float* const mine = shared + place.lane * t.width * kPackSize + place.col;
#pragma unroll
  for (int j = 0; j < kPackSize; ++j) mine[j] = values[j];
}

// The sum over the lanes of column `col` of what they showed, in order.
template <int kPackSize>
__device__ float SumOfLanes(const float* shared, const ColumnTiles& t, int col) {
  float sum = 0;
#pragma unroll 8
  for (int lane = 0; lane < t.lanes; ++lane) sum += shared[lane * t.width * kPackSize + col];
  return sum;
}

// The second launch: 8 columns a block, 32 lanes each, and each lane reads all of its chunks at
// once.
inline constexpr int kFinishCols = 8;
inline constexpr int kFinishLanes = kThreads / kFinishCols;
inline constexpr int kFinishEach = kMostRowChunks / kFinishLanes;
inline constexpr int kBlockSums = kThreads / kWarp * kFinishCols;

// The sum over the kFinishLanes threads of each column, for lane 0 of it, in a fixed tree. All
// threads of the block call. shared: [kBlockSums], its own.
__device__ inline double SumOverFinishLanes(double value, double* shared) {
#pragma unroll
  for (int offset = kFinishCols; offset < kWarp; offset *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  const int warp = threadIdx.x / kWarp, in_warp = threadIdx.x % kWarp;
  if (in_warp < kFinishCols) shared[warp * kFinishCols + in_warp] = value;
  __syncthreads();
  double sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    sum += shared[w * kFinishCols + threadIdx.x % kFinishCols];
  }
  return sum;
}

}  // namespace trainyard::kernels::cuda
