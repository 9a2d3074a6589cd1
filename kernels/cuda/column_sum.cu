#include "kernels/cuda/column_sum.h"

#include <algorithm>

#include "kernels/cuda/column_tiles.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/row_chunks.cuh"
#include "kernels/cuda/row_cuts.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// Rows that a thread loads at once; enough blocks to fill every multiprocessor twice over.
constexpr int kRows = 8;
constexpr int64_t kBlocks = 1056;
// The least rounds per block, so that a few rows do not cost a second launch.
constexpr int64_t kLeastRounds = 4;

// sums: [chunks, cols], or y where there is one chunk.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads)
    ColumnSumKernel(const T* x, float* sums, ColumnTiles t, bool accumulate) {
  __shared__ float of_lanes[kThreads * kPackSize];
  const TilePlace<kPackSize> place(t);
  float sum[kPackSize] = {};
  const T* at = x + place.begin;
  for (int rows = place.rows; rows > 0; rows -= kRows, at += kRows * place.step) {
    Pack<T, kPackSize> read[kRows];
    LoadRows(read, at, place.step, rows, t.by_packs);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {  // rows that are not there are zero
#pragma unroll
      for (int j = 0; j < kPackSize; ++j) sum[j] += read[i][j];
    }
  }
  ShowLanes(sum, t, place, of_lanes);
  __syncthreads();
  const int col = static_cast<int>(threadIdx.x);
  if (col >= place.cols) return;
  float* const to = sums + place.chunk * t.cols + place.first_col + col;
  const float all = SumOfLanes<kPackSize>(of_lanes, t, col);
  *to = accumulate ? *to + all : all;
}

}  // namespace

void LaunchColumnSum(Stream& stream, const Buffer& x, float* y, int64_t rows, int64_t cols,
                     bool accumulate, void* scratch, int64_t step) {
  if (step == 0) step = cols;
  ForElement(x.dtype, [&]<typename T>() {
    WithPack<T>(cols, [&]<int kPackSize>() {
      const int64_t tiles = CeilDiv(cols / kPackSize, kTilePacks);
      const bool by_packs = Aligned(kPackBytes, {x.data}) && step % kPackSize == 0;
      ColumnTiles t =
          TileColumns(rows, cols, kPackSize, kRows, std::min(kBlocks, tiles * kMostRowChunks),
                      by_packs, kLeastRounds);
      t.row_step = step;
      float* const partial = static_cast<float*>(scratch);
      const bool whole = t.chunks == 1;
      Launch(stream, {.grid = t.grid()}, ColumnSumKernel<T, kPackSize>, x.As<T>(),
             whole ? y : partial, t, whole && accumulate);
      if (!whole) LaunchAddChunks(stream, partial, y, t.chunks, cols, accumulate);
    });
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const ColumnSum& op) {
  Kernel kernel{.scratch_bytes = CutSumBytes(op.rows, op.cols, op.cuts)};
  kernel.launch = [op](Stream& stream) {
    const int64_t step = op.row_stride();
    if (op.cuts == 1) {
      return LaunchColumnSum(stream, op.x, op.y.As<float>(), op.rows, op.cols, op.accumulate,
                             stream.scratch, step);
    }
    float* const sums = static_cast<float*>(stream.scratch);
    const int count = EachCut(op.rows, op.cuts, [&](int64_t first, int64_t end, int number) {
      LaunchColumnSum(stream, op.x.From(first * step), sums + number * op.cols, end - first,
                      op.cols, /*accumulate=*/false, sums + op.cuts * op.cols, step);
    });
    LaunchAddCuts(stream, sums, op.y.As<float>(), count, op.cols, op.accumulate);
  };
  return kernel;
}

}  // namespace trainyard::kernels::cuda
