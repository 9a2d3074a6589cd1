#include "kernels/ops/layer_norm.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/row_chunks.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kRowsPerBlock = kThreads / kWarp;  // a warp per row

__device__ int64_t WarpRow() { return int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp; }

// x, y: [rows, cols]; gamma, beta: [cols]; mean, rstd: [rows]. The row comes from memory once and
// from the caches twice. Mean first, then the squares around it; what the rounded mean left over is
// taken into account, so that a large mean costs no digits.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LayerNormKernel(const float* x, const float* gamma, const float* beta, T* y, float* mean,
                    float* rstd, int64_t rows, int64_t cols, float epsilon) {
  const int64_t row = WarpRow();
  if (row >= rows) return;  // the whole warp
  const int lane = threadIdx.x % kWarp;
  x += row * cols;
  y += row * cols;
  const bool centred = mean != nullptr;
  float sum = 0;
  for (int64_t c = lane; centred && c < cols; c += kWarp) sum += x[c];
  const float m = WarpSum(sum) / static_cast<float>(cols);
  float rest = 0, squares = 0;
  for (int64_t c = lane; c < cols; c += kWarp) {
    const float d = x[c] - m;
    rest += d;
    squares += d * d;
  }
  rest = centred ? WarpSum(rest) / static_cast<float>(cols) : 0.0f;
  const float variance = WarpSum(squares) / static_cast<float>(cols) - rest * rest;
  const float r = 1.0f / sqrtf(variance + epsilon);
  for (int64_t c = lane; c < cols; c += kWarp) {
    const float scaled = (x[c] - m - rest) * r * gamma[c];
    y[c] = FromFloat<T>(beta != nullptr ? scaled + beta[c] : scaled);
  }
  if (lane == 0) {
    if (centred) mean[row] = m + rest;
    rstd[row] = r;
  }
}

// With g = dy * gamma and xhat = (x - mean) * rstd:
//   dx (+)= rstd * (g - mean of g - xhat * mean of g * xhat), the means over the row
// and less mean of g when there is no mean.
// A lane writes dx[c] after it alone read dy[c]: dx may be dy.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LayerNormBackwardKernel(const T* dy, const float* x, const float* gamma, const float* mean,
                            const float* rstd, float* dx, int64_t rows, int64_t cols,
                            bool accumulate) {
  const int64_t row = WarpRow();
  if (row >= rows) return;  // the whole warp
  const int lane = threadIdx.x % kWarp;
  dy += row * cols;
  x += row * cols;
  dx += row * cols;
  const float m = mean != nullptr ? mean[row] : 0.0f, r = rstd[row];
  float sum_g = 0, sum_gx = 0;
  for (int64_t c = lane; c < cols; c += kWarp) {
    const float g = ToFloat(dy[c]) * gamma[c];
    sum_g += g;
    sum_gx += g * ((x[c] - m) * r);
  }
  const float mean_g = mean != nullptr ? WarpSum(sum_g) / static_cast<float>(cols) : 0.0f;
  const float mean_gx = WarpSum(sum_gx) / static_cast<float>(cols);
  for (int64_t c = lane; c < cols; c += kWarp) {
    const float gradient = r * (ToFloat(dy[c]) * gamma[c] - mean_g - (x[c] - m) * r * mean_gx);
    dx[c] = accumulate ? dx[c] + gradient : gradient;
  }
}

// dgamma, dbeta: [chunks, cols], the sums of dy * xhat and of dy over a chunk of rows; either may
// be null. Block: chunk x 32 columns.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LayerNormParamsKernel(const T* dy, const float* x, const float* mean, const float* rstd,
                          float* dgamma, float* dbeta, int64_t rows, int64_t cols,
                          int64_t rows_each, int64_t col_tiles) {
  __shared__ float tile[kChunkLanes * kChunkCols];
  const int64_t chunk = blockIdx.x / col_tiles;
  const int64_t col = blockIdx.x % col_tiles * kChunkCols + threadIdx.x % kChunkCols;
  const int lane = threadIdx.x / kChunkCols;
  const int64_t end = min(rows, (chunk + 1) * rows_each);
  float sum_gamma = 0, sum_beta = 0;
  if (col < cols) {
    for (int64_t r = chunk * rows_each + lane; r < end; r += kChunkLanes) {
      const float g = ToFloat(dy[r * cols + col]);
      const float m = mean != nullptr ? mean[r] : 0.0f;
      sum_gamma += g * ((x[r * cols + col] - m) * rstd[r]);
      sum_beta += g;
    }
  }
  sum_gamma = SumOverLanes(sum_gamma, tile);
  sum_beta = SumOverLanes(sum_beta, tile);
  if (lane == 0 && col < cols) {
    if (dgamma != nullptr) dgamma[chunk * cols + col] = sum_gamma;
    if (dbeta != nullptr) dbeta[chunk * cols + col] = sum_beta;
  }
}

template <typename T>
void LaunchBackward(Stream& stream, const LayerNormBackward& op) {
  const RowChunks chunks = ChunkRows(op.rows);
  const int64_t col_tiles = CeilDiv(op.cols, kChunkCols);
  const T* dy = op.dy.As<T>();
  const float* x = op.x.As<float>();
  const float* mean = op.mean ? op.mean.As<float>() : nullptr;
  const float* rstd = op.rstd.As<float>();
  float* sums = static_cast<float*>(stream.scratch);
  float* dgamma = op.dgamma ? sums : nullptr;
  float* dbeta = op.dbeta ? sums + (op.dgamma ? chunks.count * op.cols : 0) : nullptr;
  // The parameters first: dx may overwrite dy.
  if (op.dgamma || op.dbeta) {
    Launch(stream, {.grid = Blocks(chunks.count * col_tiles)}, LayerNormParamsKernel<T>, dy, x,
           mean, rstd, dgamma, dbeta, op.rows, op.cols, chunks.rows_each, col_tiles);
  }
  const auto finish = [&](const float* partial, const Buffer& to) {
    if (!to) return;
    LaunchAddChunks(stream, partial, to.As<float>(), chunks.count, op.cols, op.accumulate_params);
  };
  finish(dgamma, op.dgamma);
  finish(dbeta, op.dbeta);
  if (!op.dx) return;
  Launch(stream, {.grid = Blocks(CeilDiv(op.rows, kRowsPerBlock))}, LayerNormBackwardKernel<T>, dy,
         x, op.gamma.As<float>(), mean, rstd, op.dx.As<float>(), op.rows, op.cols,
         op.accumulate_dx);
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const LayerNormForward& op) {
  absl::Status status =
      RequireTypes("layer norm", {{"x", op.x},
                                  {"gamma", op.gamma},
                                  {.name = "beta", .buffer = op.beta, .optional = true},
                                  {"y", op.y, op.y.dtype},
                                  {.name = "mean", .buffer = op.mean, .optional = true},
                                  {"rstd", op.rstd}});
  status.Update(RequirePositive("layer norm", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  return ForElement("layer norm", op.y.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      Launch(stream, {.grid = Blocks(CeilDiv(op.rows, kRowsPerBlock))}, LayerNormKernel<T>,
             op.x.As<float>(), op.gamma.As<float>(), OptionalAs<float>(op.beta), op.y.As<T>(),
             OptionalAs<float>(op.mean), op.rstd.As<float>(), op.rows, op.cols, op.epsilon);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const LayerNormBackward& op) {
  absl::Status status = RequireTypes("layer norm backward",
                                     {{"dy", op.dy, op.dy.dtype},
                                      {"x", op.x},
                                      {"gamma", op.gamma},
                                      {.name = "mean", .buffer = op.mean, .optional = true},
                                      {"rstd", op.rstd},
                                      {.name = "dx", .buffer = op.dx, .optional = true},
                                      {.name = "dgamma", .buffer = op.dgamma, .optional = true},
                                      {.name = "dbeta", .buffer = op.dbeta, .optional = true}});
  status.Update(RequirePositive("layer norm backward", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  if (op.accumulate_dx && op.dx.data == op.dy.data) {
    return absl::InvalidArgumentError("layer norm backward: dx is dy and accumulated into");
  }
  const int sums = (op.dgamma ? 1 : 0) + (op.dbeta ? 1 : 0);
  const int64_t floats = ChunkRows(op.rows).count * op.cols * sums;
  return ForElement("layer norm backward", op.dy.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) { LaunchBackward<T>(stream, op); },
                  .scratch_bytes = static_cast<size_t>(floats) * sizeof(float)};
  });
}

}  // namespace trainyard::kernels::cuda
