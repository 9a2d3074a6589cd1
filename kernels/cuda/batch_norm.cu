#include "kernels/ops/batch_norm.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/row_chunks.cuh"

namespace trainyard::kernels::cuda {
namespace {

// The rows and the column that a thread of a (chunk, 32 columns) block reads.
struct ChunkPlace {
  __device__ ChunkPlace(int64_t rows, int64_t rows_each, int64_t col_tiles)
      : chunk(blockIdx.x / col_tiles),
        col(blockIdx.x % col_tiles * kChunkCols + threadIdx.x % kChunkCols),
        lane(threadIdx.x / kChunkCols),
        begin(chunk * rows_each),
        end(min(rows, begin + rows_each)) {}

  int64_t chunk, col;
  int lane;
  int64_t begin, end;
};

// means, squares: [chunks, cols], of a chunk of rows the mean and the sum of squares around it.
// Sums are taken of the distance to the first row, so that a mean far from zero costs no digits.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BatchNormMomentsKernel(const T* x, float* means, float* squares, int64_t rows, int64_t cols,
                           int64_t rows_each, int64_t col_tiles) {
  __shared__ float tile[kChunkLanes * kChunkCols];
  __shared__ float mean_of[kChunkCols];
  const ChunkPlace at(rows, rows_each, col_tiles);
  const bool mine = at.col < cols;
  const float first = mine ? ToFloat(x[at.begin * cols + at.col]) : 0;
  float sum = 0;
  for (int64_t r = at.begin + at.lane; mine && r < at.end; r += kChunkLanes) {
    sum += ToFloat(x[r * cols + at.col]) - first;
  }
  sum = SumOverLanes(sum, tile);
  if (at.lane == 0) {
    mean_of[threadIdx.x] = first + sum / static_cast<float>(at.end - at.begin);
  }
  __syncthreads();
  const float mean = mean_of[threadIdx.x % kChunkCols];
  float square = 0;
  for (int64_t r = at.begin + at.lane; mine && r < at.end; r += kChunkLanes) {
    const float d = ToFloat(x[r * cols + at.col]) - mean;
    square += d * d;
  }
  square = SumOverLanes(square, tile);
  if (at.lane == 0 && mine) {
    means[at.chunk * cols + at.col] = mean;
    squares[at.chunk * cols + at.col] = square;
  }
}

__device__ float Moved(float running, double to, float momentum) {
  return static_cast<float>(running + static_cast<double>(momentum) * (to - running));
}

// A thread per column adds up the chunks (Chan, Golub & LeVeque 1979).
__global__ void __launch_bounds__(kThreads)
    FinishMomentsKernel(const float* means, const float* squares, float* mean, float* rstd,
                        float* running_mean, float* running_var, int64_t rows, int64_t cols,
                        int64_t rows_each, int64_t chunks, float epsilon, float momentum) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= cols) return;
  const auto size = [&](int64_t k) {
    return static_cast<double>(min(rows_each, rows - k * rows_each));
  };
  double m = 0, variance = 0;
  for (int64_t k = 0; k < chunks; ++k) m += size(k) * means[k * cols + c];
  m /= static_cast<double>(rows);
  for (int64_t k = 0; k < chunks; ++k) {
    const double d = means[k * cols + c] - m;
    variance += squares[k * cols + c] + size(k) * d * d;
  }
  mean[c] = static_cast<float>(m);
  rstd[c] = static_cast<float>(1 / sqrt(variance / static_cast<double>(rows) + epsilon));
  running_mean[c] = Moved(running_mean[c], m, momentum);
  running_var[c] = Moved(running_var[c], variance / static_cast<double>(rows - 1), momentum);
}

// y = relu?((x - mean) * rstd * gamma + beta + residual?). With `variance` in place of rstd: rstd =
// 1 / sqrt(variance + epsilon). A thread writes only what it alone read before.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BatchNormKernel(const T* x, const float* gamma, const float* beta, const T* residual,
                    const float* mean, const float* rstd, const float* variance, T* y, int64_t n,
                    int64_t cols, float epsilon, bool relu) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t c = i % cols;
  const float r = variance == nullptr ? rstd[c] : 1.0f / sqrtf(variance[c] + epsilon);
  float v = (ToFloat(x[i]) - mean[c]) * (gamma[c] * r) + beta[c];
  if (residual != nullptr) v += ToFloat(residual[i]);
  y[i] = FromFloat<T>(relu && v < 0 ? 0.0f : v);  // NaN passes through, as in PyTorch
}

// dy where y > 0, or where there is no y.
template <typename T>
__device__ float Passed(const T* dy, const T* y, int64_t i) {
  return y == nullptr || ToFloat(y[i]) > 0 ? ToFloat(dy[i]) : 0.0f;
}

// sums, dots: [chunks, cols], of g and of g * (x - mean) over a chunk of rows; dresidual = g.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BatchNormSumsKernel(const T* dy, const T* x, const T* y, const float* mean, T* dresidual,
                        float* sums, float* dots, int64_t rows, int64_t cols, int64_t rows_each,
                        int64_t col_tiles) {
  __shared__ float tile[kChunkLanes * kChunkCols];
  const ChunkPlace at(rows, rows_each, col_tiles);
  float sum = 0, dot = 0;
  if (at.col < cols) {
    const float m = mean[at.col];
    for (int64_t r = at.begin + at.lane; r < at.end; r += kChunkLanes) {
      const int64_t i = r * cols + at.col;
      const float g = Passed(dy, y, i);
      if (dresidual != nullptr) dresidual[i] = FromFloat<T>(g);
      sum += g;
      dot += g * (ToFloat(x[i]) - m);
    }
  }
  sum = SumOverLanes(sum, tile);
  dot = SumOverLanes(dot, tile);
  if (at.lane == 0 && at.col < cols) {
    sums[at.chunk * cols + at.col] = sum;
    dots[at.chunk * cols + at.col] = dot;
  }
}

// dgamma, dbeta (either may be null) and, per column, the factors of dx = g * of_g + (x - mean) *
// of_d + plus. factors: [3, cols]
__global__ void __launch_bounds__(kThreads)
    FinishSumsKernel(const float* sums, const float* dots, const float* gamma, const float* rstd,
                     float* dgamma, float* dbeta, float* factors, int64_t rows, int64_t cols,
                     int64_t chunks, bool accumulate) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= cols) return;
  double sum = 0, dot = 0;
  for (int64_t k = 0; k < chunks; ++k) {
    sum += sums[k * cols + c];
    dot += dots[k * cols + c];
  }
  const double r = rstd[c], of_g = gamma[c] * r;
  if (dgamma != nullptr) {
    dgamma[c] = static_cast<float>(accumulate ? dgamma[c] + dot * r : dot * r);
  }
  if (dbeta != nullptr) dbeta[c] = static_cast<float>(accumulate ? dbeta[c] + sum : sum);
  factors[c] = static_cast<float>(of_g);
  factors[cols + c] = static_cast<float>(-of_g * r * r * dot / static_cast<double>(rows));
  factors[2 * cols + c] = static_cast<float>(-of_g * sum / static_cast<double>(rows));
}

// A thread writes dx[i] after it alone read x[i].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BatchNormGradientKernel(const T* dy, const T* x, const T* y, const float* mean,
                            const float* factors, T* dx, int64_t n, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t c = i % cols;
  dx[i] = FromFloat<T>(Passed(dy, y, i) * factors[c] +
                       ((ToFloat(x[i]) - mean[c]) * factors[cols + c] + factors[2 * cols + c]));
}

template <typename T>
void LaunchForward(Stream& stream, const BatchNormForward& op) {
  const RowChunks chunks = ChunkRows(op.rows);
  const int64_t col_tiles = CeilDiv(op.cols, kChunkCols), n = op.rows * op.cols;
  float* means = static_cast<float*>(stream.scratch);
  float* squares = means + chunks.count * op.cols;
  const T* x = op.x.As<T>();
  float* mean = op.mean.As<float>();
  float* rstd = op.rstd.As<float>();
  if (!op.again) {
    Launch(stream, {.grid = Blocks(chunks.count * col_tiles)}, BatchNormMomentsKernel<T>, x, means,
           squares, op.rows, op.cols, chunks.rows_each, col_tiles);
    Launch(stream, {.grid = Blocks(CeilDiv(op.cols, kThreads))}, FinishMomentsKernel, means,
           squares, mean, rstd, op.running_mean.As<float>(), op.running_var.As<float>(), op.rows,
           op.cols, chunks.rows_each, chunks.count, op.epsilon, op.momentum);
  }
  Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, BatchNormKernel<T>, x,
         op.gamma.As<float>(), op.beta.As<float>(), OptionalAs<T>(op.residual), mean, rstd, nullptr,
         op.y.As<T>(), n, op.cols, op.epsilon, op.relu);
}

template <typename T>
void LaunchBackward(Stream& stream, const BatchNormBackward& op) {
  const RowChunks chunks = ChunkRows(op.rows);
  const int64_t col_tiles = CeilDiv(op.cols, kChunkCols), n = op.rows * op.cols;
  float* sums = static_cast<float*>(stream.scratch);
  float* dots = sums + chunks.count * op.cols;
  float* factors = dots + chunks.count * op.cols;
  const T* x = op.x.As<T>();
  const T* dy = op.dy.As<T>();
  const T* y = OptionalAs<T>(op.y);
  const float* mean = op.mean.As<float>();
  T* dresidual = OptionalAs<T>(op.dresidual);
  Launch(stream, {.grid = Blocks(chunks.count * col_tiles)}, BatchNormSumsKernel<T>, dy, x, y, mean,
         dresidual, sums, dots, op.rows, op.cols, chunks.rows_each, col_tiles);
  Launch(stream, {.grid = Blocks(CeilDiv(op.cols, kThreads))}, FinishSumsKernel, sums, dots,
         op.gamma.As<float>(), op.rstd.As<float>(), OptionalAs<float>(op.dgamma),
         OptionalAs<float>(op.dbeta), factors, op.rows, op.cols, chunks.count,
         op.accumulate_params);
  if (!op.dx) return;
  // dresidual holds g already, and dy may be gone.
  const T* g = dresidual != nullptr ? dresidual : dy;
  const T* mask = dresidual != nullptr ? nullptr : y;
  Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, BatchNormGradientKernel<T>, g, x, mask,
         mean, factors, op.dx.As<T>(), n, op.cols);
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const BatchNormForward& op) {
  const DType type = op.x.dtype;
  absl::Status status = RequireTypes(
      "batch norm", {{"x", op.x, type},
                     {"gamma", op.gamma},
                     {"beta", op.beta},
                     {"residual", op.residual, type, true},
                     {"y", op.y, type},
                     {"mean", op.mean},
                     {"rstd", op.rstd},
                     {.name = "running_mean", .buffer = op.running_mean, .optional = op.again},
                     {.name = "running_var", .buffer = op.running_var, .optional = op.again}});
  status.Update(RequirePositive("batch norm", {{"rows - 1", op.rows - 1}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  const int64_t floats = 2 * ChunkRows(op.rows).count * op.cols;
  return ForElement("batch norm", type, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) { LaunchForward<T>(stream, op); },
                  .scratch_bytes = static_cast<size_t>(floats) * sizeof(float)};
  });
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const BatchNormInference& op) {
  const DType type = op.x.dtype;
  absl::Status status = RequireTypes("batch norm inference", {{"x", op.x, type},
                                                              {"gamma", op.gamma},
                                                              {"beta", op.beta},
                                                              {"residual", op.residual, type, true},
                                                              {"running_mean", op.running_mean},
                                                              {"running_var", op.running_var},
                                                              {"y", op.y, type}});
  status.Update(RequirePositive("batch norm inference", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  return ForElement("batch norm inference", type, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      const int64_t n = op.rows * op.cols;
      Launch(stream, {.grid = Blocks(CeilDiv(n, kThreads))}, BatchNormKernel<T>, op.x.As<T>(),
             op.gamma.As<float>(), op.beta.As<float>(), OptionalAs<T>(op.residual),
             op.running_mean.As<float>(), nullptr, op.running_var.As<float>(), op.y.As<T>(), n,
             op.cols, op.epsilon, op.relu);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const BatchNormBackward& op) {
  const DType type = op.dy.dtype;
  absl::Status status = RequireTypes("batch norm backward",
                                     {{"dy", op.dy, type},
                                      {"x", op.x, type},
                                      {"y", op.y, type, true},
                                      {"gamma", op.gamma},
                                      {"mean", op.mean},
                                      {"rstd", op.rstd},
                                      {"dx", op.dx, type, true},
                                      {"dresidual", op.dresidual, type, true},
                                      {.name = "dgamma", .buffer = op.dgamma, .optional = true},
                                      {.name = "dbeta", .buffer = op.dbeta, .optional = true}});
  status.Update(RequirePositive("batch norm backward", {{"rows", op.rows}, {"cols", op.cols}}));
  if (!status.ok()) return status;
  const int64_t floats = (2 * ChunkRows(op.rows).count + 3) * op.cols;
  return ForElement("batch norm backward", type, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) { LaunchBackward<T>(stream, op); },
                  .scratch_bytes = static_cast<size_t>(floats) * sizeof(float)};
  });
}

}  // namespace trainyard::kernels::cuda
