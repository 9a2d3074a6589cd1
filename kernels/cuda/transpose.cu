#include "kernels/cuda/transpose.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = kThreads / kTile;  // rows of a tile that a block touches at once

// A block moves one 32 x 32 tile through shared memory, so that reads and writes both run along the
// fast dimension. The odd row length keeps a column's elements in different banks.
__global__ void __launch_bounds__(kThreads)
    TransposeKernel(const float* x, float* y, int64_t rows, int64_t cols, int64_t row_tiles,
                    int64_t col_tiles, bool accumulate) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t batch = blockIdx.x / (row_tiles * col_tiles);
  const int64_t in_batch = blockIdx.x % (row_tiles * col_tiles);
  const int64_t first_row = in_batch / col_tiles * kTile;
  const int64_t first_col = in_batch % col_tiles * kTile;
  const int tx = threadIdx.x % kTile, ty = threadIdx.x / kTile;
  x += batch * rows * cols;
  y += batch * rows * cols;
  for (int r = ty; r < kTile; r += kTileRows) {
    const int64_t row = first_row + r, col = first_col + tx;
    if (row < rows && col < cols) tile[r][tx] = x[row * cols + col];
  }
  __syncthreads();
  for (int c = ty; c < kTile; c += kTileRows) {
    const int64_t row = first_row + tx, col = first_col + c;
    if (row >= rows || col >= cols) continue;
    float* at = y + col * rows + row;
    *at = accumulate ? *at + tile[tx][c] : tile[tx][c];
  }
}

}  // namespace

void LaunchTranspose(Stream& stream, const float* x, float* y, int64_t batch, int64_t rows,
                     int64_t cols, bool accumulate) {
  const int64_t row_tiles = CeilDiv(rows, kTile), col_tiles = CeilDiv(cols, kTile);
  Launch(stream, {.grid = Blocks(batch * row_tiles * col_tiles)}, TransposeKernel, x, y, rows, cols,
         row_tiles, col_tiles, accumulate);
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const Transpose& op) {
  absl::Status status = RequireTypes("transpose", {{"x", op.x}, {"y", op.y}});
  status.Update(
      RequirePositive("transpose", {{"batch", op.batch}, {"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) {
    LaunchTranspose(stream, op.x.As<float>(), op.y.As<float>(), op.batch, op.rows, op.cols, false);
  }};
}

}  // namespace trainyard::kernels::cuda
