#include "kernels/cuda/column_sum.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/row_chunks.cuh"

namespace trainyard::kernels::cuda {
namespace {

// partial: [chunks, cols]. Block: chunk x 32 columns; a warp reads 32 neighbouring columns of a
// row. `step` elements of x from row to row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ColumnSumKernel(const T* x, float* partial, int64_t rows, int64_t cols, int64_t step,
                    int64_t rows_each, int64_t col_tiles) {
  __shared__ float tile[kChunkLanes * kChunkCols];
  const int64_t chunk = blockIdx.x / col_tiles;
  const int64_t col = blockIdx.x % col_tiles * kChunkCols + threadIdx.x % kChunkCols;
  const int lane = threadIdx.x / kChunkCols;
  const int64_t end = min(rows, (chunk + 1) * rows_each);
  float sum = 0;
  if (col < cols) {
    for (int64_t r = chunk * rows_each + lane; r < end; r += kChunkLanes) {
      sum += ToFloat(x[r * step + col]);
    }
  }
  sum = SumOverLanes(sum, tile);
  if (lane == 0 && col < cols) partial[chunk * cols + col] = sum;
}

}  // namespace

size_t ColumnSumScratch(int64_t rows, int64_t cols) {
  return static_cast<size_t>(ChunkRows(rows).count * cols) * sizeof(float);
}

void LaunchColumnSum(Stream& stream, const Buffer& x, float* y, int64_t rows, int64_t cols,
                     bool accumulate, void* scratch, int64_t step) {
  const RowChunks chunks = ChunkRows(rows);
  const int64_t col_tiles = CeilDiv(cols, kChunkCols);
  float* partial = static_cast<float*>(scratch);
  WithElement(x.dtype, [&]<typename T>() {
    Launch(stream, {.grid = Blocks(chunks.count * col_tiles)}, ColumnSumKernel<T>, x.As<T>(),
           partial, rows, cols, step == 0 ? cols : step, chunks.rows_each, col_tiles);
  });
  LaunchAddChunks(stream, partial, y, chunks.count, cols, accumulate);
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const ColumnSum& op) {
  absl::Status status = RequireTypes("column sum", {{"x", op.x, op.x.dtype}, {"y", op.y}});
  status.Update(RequireElement("column sum", op.x.dtype));
  status.Update(RequirePositive("column sum", {{"rows", op.rows}, {"cols", op.cols}}));
  status.Update(RequireRowStride("column sum", op.step(), op.cols));
  if (!status.ok()) return status;
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchColumnSum(stream, op.x, op.y.As<float>(), op.rows, op.cols,
                                      op.accumulate, stream.scratch, op.step());
                    },
                .scratch_bytes = ColumnSumScratch(op.rows, op.cols)};
}

}  // namespace trainyard::kernels::cuda
