#include "kernels/cuda/transpose.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = kThreads / kTile;  // rows of a tile that a block touches at once

// A block moves one 32 x 32 tile through shared memory, so that reads and writes both run along the
// fast dimension. The odd row length keeps a column's elements in different banks.
template <typename X, typename Y>
__global__ void __launch_bounds__(kThreads)
    TransposeKernel(const X* x, Y* y, int64_t rows, int64_t cols, int64_t row_tiles,
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
    if (row < rows && col < cols) tile[r][tx] = ToFloat(x[row * cols + col]);
  }
  __syncthreads();
  for (int c = ty; c < kTile; c += kTileRows) {
    const int64_t row = first_row + tx, col = first_col + c;
    if (row >= rows || col >= cols) continue;
    Y* at = y + col * rows + row;
    *at = FromFloat<Y>(accumulate ? ToFloat(*at) + tile[tx][c] : tile[tx][c]);
  }
}

}  // namespace

void LaunchTranspose(Stream& stream, const Buffer& x, const Buffer& y, int64_t batch, int64_t rows,
                     int64_t cols, bool accumulate) {
  const int64_t row_tiles = CeilDiv(rows, kTile), col_tiles = CeilDiv(cols, kTile);
  const auto launch = [&]<typename X, typename Y>() {
    Launch(stream, {.grid = Blocks(batch * row_tiles * col_tiles)}, TransposeKernel<X, Y>,
           x.As<X>(), y.As<Y>(), rows, cols, row_tiles, col_tiles, accumulate);
  };
  ForElement(x.dtype, [&]<typename T>() {
    x.dtype == y.dtype ? launch.template operator()<T, T>()
                       : launch.template operator()<T, float>();
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const Transpose& op) {
  return Kernel{.launch = [op](Stream& stream) {
    LaunchTranspose(stream, op.x, op.y, op.batch, op.rows, op.cols, false);
  }};
}

}  // namespace trainyard::kernels::cuda
