#include "kernels/ops/batch_norm.h"

#include "kernels/cuda/column_tiles.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// Rows that a thread loads at once: 128 bytes and more of each thread are in flight.
constexpr int kMomentRows = 8, kSumRows = 4, kMapRows = 4;
// Blocks per launch. Sums take one wave of two blocks on each of 132 multiprocessors; elementwise
// passes take more, so that the last wave is short.
constexpr int64_t kSumBlocks = kMostRowChunks, kMapBlocks = 2112;

// Means, and sums of squares around them, of numbers in groups (Chan, Golub & LeVeque 1979), all of
// the distance to the first number, so that a mean far from zero costs no digits.
template <int kPackSize>
struct Moments {
  float count = 0;
  float shift[kPackSize] = {}, mean[kPackSize] = {}, square[kPackSize] = {};

  // Adds the first `rows` of x, which are all of them if kWhole.
  template <bool kWhole, typename T>
  __device__ void Add(const Pack<T, kPackSize> (&x)[kMomentRows], int rows) {
    const float here = kWhole ? kMomentRows : rows;
    const float share = here / (count + here), inverse = 1.0f / here, weight = count * share;
#pragma unroll
    for (int j = 0; j < kPackSize; ++j) {
      if (count == 0) shift[j] = x[0][j];
      float d[kMomentRows], sum = 0, squares = 0;
#pragma unroll
      for (int i = 0; i < kMomentRows; ++i) {
        d[i] = kWhole || i < rows ? x[i][j] - shift[j] : 0.0f;
        sum += d[i];
      }
      const float center = sum * inverse;
#pragma unroll
      for (int i = 0; i < kMomentRows; ++i) {
        const float e = kWhole || i < rows ? d[i] - center : 0.0f;
        squares += e * e;
      }
      const float delta = center - mean[j];
      mean[j] += delta * share;
      square[j] += squares + delta * delta * weight;
    }
    count += here;
  }
};

// means, squares: [chunks, cols], the mean of a chunk of rows and the sum of squares around it.
// Lanes write their means to shared memory as distances to the chunk's first row.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads, 2)
    BatchNormMomentsKernel(const T* x, float* means, float* squares, ColumnTiles t) {
  __shared__ float lane_means[kThreads * kPackSize], lane_squares[kThreads * kPackSize];
  const TilePlace<kPackSize> place(t);
  Moments<kPackSize> moments;
  const T* at = x + place.begin;
  for (int rows = place.rows; rows > 0; rows -= kMomentRows) {
    Pack<T, kPackSize> read[kMomentRows];
    LoadRows(read, at, place.step, rows, t.by_packs);
    at += kMomentRows * place.step;
    if (rows >= kMomentRows) {
      moments.template Add<true>(read, kMomentRows);
    } else {
      moments.template Add<false>(read, rows);
    }
  }
  const T* const base = x + place.first_row * t.cols + place.first_col;
  Pack<T, kPackSize> bases[1];
  LoadRows(bases, base + place.col, 0, place.rows, t.by_packs);
#pragma unroll
  for (int j = 0; j < kPackSize; ++j) moments.mean[j] += moments.shift[j] - bases[0][j];
  ShowLanes(moments.mean, t, place, lane_means);
  ShowLanes(moments.square, t, place, lane_squares);
  __syncthreads();
  const int col = static_cast<int>(threadIdx.x);
  if (col >= place.cols) return;
  const int stride = t.width * kPackSize;
  const float first = lane_means[col];
  float weighted = 0;
#pragma unroll 8
  for (int lane = 0; lane < t.lanes; ++lane) {
    const auto rows = static_cast<float>(place.RowsOf(lane));
    weighted += rows * (lane_means[lane * stride + col] - first);
  }
  const float mean = first + weighted / static_cast<float>(place.chunk_rows);
  float square = 0;
#pragma unroll 8
  for (int lane = 0; lane < t.lanes; ++lane) {
    const auto rows = static_cast<float>(place.RowsOf(lane));
    const float d = lane_means[lane * stride + col] - mean;
    square += lane_squares[lane * stride + col] + rows * (d * d);
  }
  const int64_t to = place.chunk * t.cols + place.first_col + col;
  means[to] = ToFloat(base[col]) + mean;
  squares[to] = square;
}

__device__ float Moved(float running, double to, float momentum) {
  return static_cast<float>(running + static_cast<double>(momentum) * (to - running));
}

// Adds up the chunks, around the mean of the first one.
__global__ void __launch_bounds__(kThreads)
    FinishMomentsKernel(const float* means, const float* squares, float* mean, float* rstd,
                        float* running_mean, float* running_var, int64_t rows, int64_t cols,
                        int64_t rows_each, int64_t chunks, float epsilon, float momentum) {
  __shared__ double of_means[kBlockSums], of_squares[kBlockSums];
  const int64_t c = int64_t{blockIdx.x} * kFinishCols + threadIdx.x % kFinishCols;
  const int lane = threadIdx.x / kFinishCols;
  double first = 0, weighted = 0, square = 0;
  if (c < cols) {
    float of_mean[kFinishEach], of_square[kFinishEach];
    first = means[c];
#pragma unroll
    for (int i = 0; i < kFinishEach; ++i) {
      const int64_t k = lane + i * kFinishLanes;
      of_mean[i] = k < chunks ? means[k * cols + c] : 0.0f;
      of_square[i] = k < chunks ? squares[k * cols + c] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kFinishEach; ++i) {
      const int64_t k = lane + i * kFinishLanes;
      if (k >= chunks) continue;
      const double size = static_cast<double>(min(rows_each, rows - k * rows_each));
      const double d = of_mean[i] - first;
      weighted += size * d;
      square += of_square[i] + size * d * d;
    }
  }
  weighted = SumOverFinishLanes(weighted, of_means);
  square = SumOverFinishLanes(square, of_squares);
  if (lane > 0 || c >= cols) return;
  const double shift = weighted / static_cast<double>(rows), m = first + shift;
  const double variance = fmax(square - shift * weighted, 0.0);
  mean[c] = static_cast<float>(m);
  rstd[c] = static_cast<float>(1 / sqrt(variance / static_cast<double>(rows) + epsilon));
  running_mean[c] = Moved(running_mean[c], m, momentum);
  running_var[c] = Moved(running_var[c], variance / static_cast<double>(rows - 1), momentum);
}

// [rows, cols] of T: x, residual (or null), y. [cols]: gamma, beta, mean, and rstd or variance.
template <typename T>
struct NormArguments {
  const T* x;
  const float *gamma, *beta;
  const T* residual;
  const float *mean, *rstd, *variance;
  T* y;
  float epsilon;
  bool relu;
};

// y = relu?((x - mean) * rstd * gamma + beta + residual?). A thread writes what it alone read.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads, 3) BatchNormKernel(NormArguments<T> a, ColumnTiles t) {
  using Place = TilePlace<kPackSize>;
  __shared__ float means[Place::kCols], scales[Place::kCols], shifts[Place::kCols];
  const Place place(t);
  if (static_cast<int>(threadIdx.x) < place.cols) {
    const int64_t c = place.first_col + threadIdx.x;
    const float r = a.variance == nullptr ? a.rstd[c] : 1.0f / sqrtf(a.variance[c] + a.epsilon);
    means[threadIdx.x] = a.mean[c];
    scales[threadIdx.x] = a.gamma[c] * r;
    shifts[threadIdx.x] = a.beta[c];
  }
  __syncthreads();
  if (place.rows == 0) return;
  float mean[kPackSize], scale[kPackSize], shift[kPackSize];
#pragma unroll
  for (int j = 0; j < kPackSize; ++j) {
    mean[j] = means[place.col + j];
    scale[j] = scales[place.col + j];
    shift[j] = shifts[place.col + j];
  }
  const float least = a.relu ? 0.0f : -INFINITY;
  int64_t at = place.begin;
  for (int rows = place.rows; rows > 0; rows -= kMapRows, at += kMapRows * place.step) {
    Pack<T, kPackSize> x[kMapRows], other[kMapRows];  // no residual: zeros
    LoadRows(x, a.x + at, place.step, rows, t.by_packs);
    if (a.residual != nullptr) {
      LoadRows(other, a.residual + at, place.step, rows, t.by_packs);
    }
#pragma unroll
    for (int i = 0; i < kMapRows; ++i) {
      if (i >= rows) break;
      float y[kPackSize];
#pragma unroll
      for (int j = 0; j < kPackSize; ++j) {
        const float v = (x[i][j] - mean[j]) * scale[j] + shift[j] + other[i][j];
        y[j] = v < least ? least : v;  // NaN passes through, as in PyTorch
      }
      x[i].Set(y);
      StoreRow(x[i], a.y + at + i * place.step, t.by_packs);
    }
  }
}

// [rows, cols] of T: dy, x, y (or null), dresidual (or null), dx. mean: [cols].
template <typename T>
struct GradientArguments {
  const T *dy, *x, *y;
  const float* mean;
  T *dresidual, *dx;
};

// What a thread reads at once of the rows of a gradient.
template <typename T, int kPackSize, int kRows>
struct GradientRows {
  Pack<T, kPackSize> dy[kRows], x[kRows], y[kRows];

  __device__ GradientRows(const GradientArguments<T>& a, int64_t at, int64_t step, int rows,
                          bool by_packs) {
    LoadRows(dy, a.dy + at, step, rows, by_packs);
    LoadRows(x, a.x + at, step, rows, by_packs);
    if (a.y != nullptr) {
      LoadRows(y, a.y + at, step, rows, by_packs);
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) y[i].Fill(1);
    }
  }

  // dy where y > 0, or where there is no y.
  __device__ float Passed(int i, int j) const { return y[i][j] > 0 ? dy[i][j] : 0.0f; }
};

// sums, dots: [chunks, cols], of g and of g * (x - mean) over a chunk of rows; dresidual = g.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads, 2)
    BatchNormSumsKernel(GradientArguments<T> a, float* sums, float* dots, ColumnTiles t) {
  __shared__ float lane_sums[kThreads * kPackSize], lane_dots[kThreads * kPackSize];
  const TilePlace<kPackSize> place(t);
  float sum[kPackSize] = {}, dot[kPackSize] = {}, mean[kPackSize] = {};
  if (place.rows > 0) {
#pragma unroll
    for (int j = 0; j < kPackSize; ++j) mean[j] = a.mean[place.first_col + place.col + j];
  }
  int64_t at = place.begin;
  for (int rows = place.rows; rows > 0; rows -= kSumRows, at += kSumRows * place.step) {
    GradientRows<T, kPackSize, kSumRows> read(a, at, place.step, rows, t.by_packs);
#pragma unroll
    for (int i = 0; i < kSumRows; ++i) {
      if (i >= rows) break;
      float g[kPackSize];
#pragma unroll
      for (int j = 0; j < kPackSize; ++j) {
        g[j] = read.Passed(i, j);
        sum[j] += g[j];
        dot[j] += g[j] * (read.x[i][j] - mean[j]);
      }
      if (a.dresidual != nullptr) {
        read.dy[i].Set(g);
        StoreRow(read.dy[i], a.dresidual + at + i * place.step, t.by_packs);
      }
    }
  }
  ShowLanes(sum, t, place, lane_sums);
  ShowLanes(dot, t, place, lane_dots);
  __syncthreads();
  const int col = static_cast<int>(threadIdx.x);
  if (col >= place.cols) return;
  const int64_t to = place.chunk * t.cols + place.first_col + col;
  sums[to] = SumOfLanes<kPackSize>(lane_sums, t, col);
  dots[to] = SumOfLanes<kPackSize>(lane_dots, t, col);
}

// dgamma, dbeta (either may be null) and, per column, the factors of dx = g * of_g + (x - mean) *
// of_d + plus. factors: [3, cols]
__global__ void __launch_bounds__(kThreads)
    FinishSumsKernel(const float* sums, const float* dots, const float* gamma, const float* rstd,
                     float* dgamma, float* dbeta, float* factors, int64_t rows, int64_t cols,
                     int64_t chunks, bool accumulate) {
  __shared__ double of_sums[kBlockSums], of_dots[kBlockSums];
  const int64_t c = int64_t{blockIdx.x} * kFinishCols + threadIdx.x % kFinishCols;
  const int lane = threadIdx.x / kFinishCols;
  double sum = 0, dot = 0;
  if (c < cols) {
    float of_sum[kFinishEach], of_dot[kFinishEach];
#pragma unroll
    for (int i = 0; i < kFinishEach; ++i) {
      const int64_t k = lane + i * kFinishLanes;
      of_sum[i] = k < chunks ? sums[k * cols + c] : 0.0f;
      of_dot[i] = k < chunks ? dots[k * cols + c] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kFinishEach; ++i) {
      sum += of_sum[i];
      dot += of_dot[i];
    }
  }
  sum = SumOverFinishLanes(sum, of_sums);
  dot = SumOverFinishLanes(dot, of_dots);
  if (lane > 0 || c >= cols) return;
  const double r = rstd[c], of_g = gamma[c] * r;
  if (dgamma != nullptr) {
    dgamma[c] = static_cast<float>(accumulate ? dgamma[c] + dot * r : dot * r);
  }
  if (dbeta != nullptr) dbeta[c] = static_cast<float>(accumulate ? dbeta[c] + sum : sum);
  factors[c] = static_cast<float>(of_g);
  factors[cols + c] = static_cast<float>(-of_g * r * r * dot / static_cast<double>(rows));
  factors[2 * cols + c] = static_cast<float>(-of_g * sum / static_cast<double>(rows));
}

// dx = g * of_g + (x - mean) * of_d + plus. A thread writes dx where it alone has read x: dx may be
// x.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads, 2)
    BatchNormGradientKernel(GradientArguments<T> a, const float* factors, ColumnTiles t) {
  using Place = TilePlace<kPackSize>;
  __shared__ float means[Place::kCols], of_g[Place::kCols], of_d[Place::kCols], plus[Place::kCols];
  const Place place(t);
  if (static_cast<int>(threadIdx.x) < place.cols) {
    const int64_t c = place.first_col + threadIdx.x;
    means[threadIdx.x] = a.mean[c];
    of_g[threadIdx.x] = factors[c];
    of_d[threadIdx.x] = factors[t.cols + c];
    plus[threadIdx.x] = factors[2 * t.cols + c];
  }
  __syncthreads();
  if (place.rows == 0) return;
  float mean[kPackSize], g_factor[kPackSize], d_factor[kPackSize], addend[kPackSize];
#pragma unroll
  for (int j = 0; j < kPackSize; ++j) {
    mean[j] = means[place.col + j];
    g_factor[j] = of_g[place.col + j];
    d_factor[j] = of_d[place.col + j];
    addend[j] = plus[place.col + j];
  }
  int64_t at = place.begin;
  for (int rows = place.rows; rows > 0; rows -= kMapRows, at += kMapRows * place.step) {
    GradientRows<T, kPackSize, kMapRows> read(a, at, place.step, rows, t.by_packs);
#pragma unroll
    for (int i = 0; i < kMapRows; ++i) {
      if (i >= rows) break;
      float dx[kPackSize];
#pragma unroll
      for (int j = 0; j < kPackSize; ++j) {
        dx[j] =
            read.Passed(i, j) * g_factor[j] + ((read.x[i][j] - mean[j]) * d_factor[j] + addend[j]);
      }
      read.x[i].Set(dx);
      StoreRow(read.x[i], a.dx + at + i * place.step, t.by_packs);
    }
  }
}

template <typename T>
ColumnTiles SumTiles(int64_t rows, int64_t cols, int rows_at_once, bool by_packs) {
  return TileColumns(rows, cols, PackOf<T>(cols), rows_at_once, kSumBlocks, by_packs);
}

template <typename T>
ColumnTiles MapTiles(int64_t rows, int64_t cols, bool by_packs) {
  return TileColumns(rows, cols, PackOf<T>(cols), kMapRows, kMapBlocks, by_packs);
}

template <typename T>
void LaunchNorm(Stream& stream, const NormArguments<T>& a, int64_t rows, int64_t cols) {
  const ColumnTiles t = MapTiles<T>(rows, cols, Aligned(kPackBytes, {a.x, a.residual, a.y}));
  WithPack<T>(cols, [&]<int kPackSize>() {
    Launch(stream, {.grid = t.grid()}, BatchNormKernel<T, kPackSize>, a, t);
  });
}

template <typename T>
void LaunchForward(Stream& stream, const BatchNormForward& op) {
  const T* x = op.x.As<T>();
  float* mean = op.mean.As<float>();
  float* rstd = op.rstd.As<float>();
  if (!op.again) {
    const ColumnTiles t = SumTiles<T>(op.rows, op.cols, kMomentRows, Aligned(kPackBytes, {x}));
    float* means = static_cast<float*>(stream.scratch);
    float* squares = means + t.chunks * op.cols;
    WithPack<T>(op.cols, [&]<int kPackSize>() {
      Launch(stream, {.grid = t.grid()}, BatchNormMomentsKernel<T, kPackSize>, x, means, squares,
             t);
    });
    Launch(stream, {.grid = Blocks(CeilDiv(op.cols, kFinishCols))}, FinishMomentsKernel, means,
           squares, mean, rstd, op.running_mean.As<float>(), op.running_var.As<float>(), op.rows,
           op.cols, t.rows_each, t.chunks, op.epsilon, op.momentum);
  }
  LaunchNorm<T>(stream,
                {.x = x,
                 .gamma = op.gamma.As<float>(),
                 .beta = op.beta.As<float>(),
                 .residual = OptionalAs<T>(op.residual),
                 .mean = mean,
                 .rstd = rstd,
                 .y = op.y.As<T>(),
                 .epsilon = op.epsilon,
                 .relu = op.relu},
                op.rows, op.cols);
}

template <typename T>
void LaunchBackward(Stream& stream, const BatchNormBackward& op) {
  GradientArguments<T> a = {.dy = op.dy.As<T>(),
                            .x = op.x.As<T>(),
                            .y = OptionalAs<T>(op.y),
                            .mean = op.mean.As<float>(),
                            .dresidual = OptionalAs<T>(op.dresidual),
                            .dx = OptionalAs<T>(op.dx)};
  const bool by_packs = Aligned(kPackBytes, {a.dy, a.x, a.y, a.dresidual, a.dx});
  const ColumnTiles t = SumTiles<T>(op.rows, op.cols, kSumRows, by_packs);
  float* sums = static_cast<float*>(stream.scratch);
  float* dots = sums + t.chunks * op.cols;
  float* factors = dots + t.chunks * op.cols;
  WithPack<T>(op.cols, [&]<int kPackSize>() {
    Launch(stream, {.grid = t.grid()}, BatchNormSumsKernel<T, kPackSize>, a, sums, dots, t);
  });
  Launch(stream, {.grid = Blocks(CeilDiv(op.cols, kFinishCols))}, FinishSumsKernel, sums, dots,
         op.gamma.As<float>(), op.rstd.As<float>(), OptionalAs<float>(op.dgamma),
         OptionalAs<float>(op.dbeta), factors, op.rows, op.cols, t.chunks, op.accumulate_params);
  if (!op.dx) return;
  if (a.dresidual != nullptr) {  // it holds g already, and dy may be gone
    a.dy = a.dresidual;
    a.y = nullptr;
  }
  const ColumnTiles map = MapTiles<T>(op.rows, op.cols, by_packs);
  WithPack<T>(op.cols, [&]<int kPackSize>() {
    Launch(stream, {.grid = map.grid()}, BatchNormGradientKernel<T, kPackSize>, a, factors, map);
  });
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const BatchNormForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) { LaunchForward<T>(stream, op); },
                  .scratch_bytes = BatchNormForwardBytes(op.rows, op.cols)};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const BatchNormInference& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      LaunchNorm<T>(stream,
                    {.x = op.x.As<T>(),
                     .gamma = op.gamma.As<float>(),
                     .beta = op.beta.As<float>(),
                     .residual = OptionalAs<T>(op.residual),
                     .mean = op.running_mean.As<float>(),
                     .variance = op.running_var.As<float>(),
                     .y = op.y.As<T>(),
                     .epsilon = op.epsilon,
                     .relu = op.relu},
                    op.rows, op.cols);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const BatchNormBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) { LaunchBackward<T>(stream, op); },
                  .scratch_bytes = BatchNormBackwardBytes(op.rows, op.cols)};
  });
}

}  // namespace trainyard::kernels::cuda
