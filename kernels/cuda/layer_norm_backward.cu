#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/row_chunks.cuh"
#include "kernels/cuda/row_cuts.cuh"
#include "kernels/for_element.h"
#include "kernels/ops/layer_norm.h"

namespace trainyard::kernels::cuda {
namespace {

// dy: [rows, cols] of T; x, dx: [rows, cols]; gamma: [cols]; mean, rstd: [rows]; dgamma, dbeta:
// [chunks of rows, cols]. mean, dx, dgamma and dbeta may be null.
template <typename T>
struct NormGradient {
  const T* dy;
  const float *x, *gamma, *mean, *rstd;
  float *dx, *dgamma, *dbeta;
  int64_t rows, cols;
  int64_t rows_each;  // of a chunk
  bool accumulate;    // into dx
  int warps;          // per row
};

// With g = dy * gamma and xhat = (x - mean) * rstd:
//   dx (+)= rstd * (g - mean of g - xhat * mean of g * xhat), the means over the row
// without the mean of g when there is no mean; dgamma, dbeta: the sums of dy * xhat and of dy over
// a chunk of rows. A block per chunk. Each operand is read from memory once; a thread sees the same
// columns of all its rows, so that their sums stay in its registers. It writes dx where it alone
// read dy: dx may be dy.
template <typename T>
__global__ void __launch_bounds__(kThreads) LayerNormBackwardKernel(const NormGradient<T> a) {
  __shared__ float tile[kMostHeld];
  __shared__ float partial[2][2 * kBlockWarps];  // used in turns: one barrier a row
  const RowGroup whole = GroupOf(a.warps, a.cols);
  const auto n = static_cast<float>(a.cols);
  const int64_t begin = int64_t{blockIdx.x} * a.rows_each, end = min(a.rows, begin + a.rows_each);
  HeldQuads dgamma = {}, dbeta = {};
  int turn = 0;
  for (int64_t first = begin; first < end; first += whole.rows_at_once()) {
    RowGroup group = whole;
    const int64_t row = first + group.row(), at = row * a.cols;
    const bool present = row < end;
    if (!present) group.cols = 0;
    if (const int64_t next = row + whole.rows_at_once(); next < end) {
      const auto cols = static_cast<int>(a.cols);
      PrefetchRow(a.x + next * a.cols, whole, cols);
      PrefetchRow(a.dy + next * a.cols, whole, cols);
      if (a.accumulate) PrefetchRow(a.dx + next * a.cols, whole, cols);
    }
    const float m = present && a.mean != nullptr ? a.mean[row] : 0.0f;
    const float r = present ? a.rstd[row] : 0.0f;
    HeldQuads xhat, g, older;
    Hold(a.x + at, group, xhat);
    if (a.accumulate) Hold(a.dx + at, group, older);
    Hold(a.dy + at, group, g);
    float sums[2] = {0, 0};  // of g and of g * xhat
    EachHeld(group, [&](auto in_quads, int q, int c) {
      float gamma[kQuad];
      TakeConstant<decltype(in_quads)::value>(a.gamma, c, group.cols, gamma);
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        const float dy = g[q][j], normal = (xhat[q][j] - m) * r;
        dgamma[q][j] = fmaf(dy, normal, dgamma[q][j]);
        dbeta[q][j] += dy;
        xhat[q][j] = normal;
        g[q][j] = dy * gamma[j];
        sums[0] += g[q][j];
        sums[1] = fmaf(g[q][j], normal, sums[1]);
      }
    });
    if (a.dx == nullptr) continue;
    SumOverRow(group, sums, partial[turn]);
    turn ^= 1;
    const float mean_g = a.mean != nullptr ? sums[0] / n : 0.0f, mean_gx = sums[1] / n;
    EachHeld(group, [&](auto in_quads, int q, int c) {
      float dx[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        dx[j] = r * fmaf(-xhat[q][j], mean_gx, g[q][j] - mean_g);
        if (a.accumulate) dx[j] += older[q][j];
      }
      Put<decltype(in_quads)::value>(dx, c, group.cols, a.dx + at);
    });
  }

  const auto leave = [&](const HeldQuads& sums, float* to) {
    if (to == nullptr) return;
    __syncthreads();  // the one before may still be read
    EachHeld(whole, [&](auto, int q, int c) {
      Put<false>(sums[q], c, a.cols, tile + whole.row() * a.cols);
    });
    __syncthreads();
    for (int64_t c = threadIdx.x; c < a.cols; c += kThreads) {
      float sum = tile[c];
      for (int i = 1; i < whole.rows_at_once(); ++i) sum += tile[i * a.cols + c];
      to[blockIdx.x * a.cols + c] = sum;
    }
  };
  leave(dgamma, a.dgamma);
  leave(dbeta, a.dbeta);
}

// dx of rows that a block cannot hold: a warp per row, which reads it twice.
template <typename T>
__global__ void __launch_bounds__(kThreads) LongRowsBackwardKernel(const NormGradient<T> a) {
  const int64_t row = int64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;  // the whole warp
  const int lane = threadIdx.x % kWarp;
  const T* dy = a.dy + row * a.cols;
  const float* x = a.x + row * a.cols;
  float* dx = a.dx + row * a.cols;
  const float m = a.mean != nullptr ? a.mean[row] : 0.0f, r = a.rstd[row];
  const auto n = static_cast<float>(a.cols);
  float sum_g = 0, sum_gx = 0;
  for (int64_t c = lane; c < a.cols; c += kWarp) {
    const float g = ToFloat(dy[c]) * a.gamma[c];
    sum_g += g;
    sum_gx += g * ((x[c] - m) * r);
  }
  const float mean_g = a.mean != nullptr ? WarpSum(sum_g) / n : 0.0f;
  const float mean_gx = WarpSum(sum_gx) / n;
  for (int64_t c = lane; c < a.cols; c += kWarp) {
    const float gradient = r * (ToFloat(dy[c]) * a.gamma[c] - mean_g - (x[c] - m) * r * mean_gx);
    dx[c] = a.accumulate ? dx[c] + gradient : gradient;
  }
}

// dgamma and dbeta of such rows. A block per chunk and 32 columns.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LongRowsParamsKernel(const NormGradient<T> a, int64_t col_tiles) {
  __shared__ float tile[kChunkLanes * kChunkCols];
  const int64_t chunk = blockIdx.x / col_tiles;
  const int64_t col = blockIdx.x % col_tiles * kChunkCols + threadIdx.x % kChunkCols;
  const int lane = threadIdx.x / kChunkCols;
  const int64_t end = min(a.rows, (chunk + 1) * a.rows_each);
  float sum_gamma = 0, sum_beta = 0;
  if (col < a.cols) {
    for (int64_t r = chunk * a.rows_each + lane; r < end; r += kChunkLanes) {
      const float g = ToFloat(a.dy[r * a.cols + col]);
      const float m = a.mean != nullptr ? a.mean[r] : 0.0f;
      sum_gamma += g * ((a.x[r * a.cols + col] - m) * a.rstd[r]);
      sum_beta += g;
    }
  }
  sum_gamma = SumOverLanes(sum_gamma, tile);
  sum_beta = SumOverLanes(sum_beta, tile);
  if (lane == 0 && col < a.cols) {
    if (a.dgamma != nullptr) a.dgamma[chunk * a.cols + col] = sum_gamma;
    if (a.dbeta != nullptr) a.dbeta[chunk * a.cols + col] = sum_beta;
  }
}

// If a block can hold the rows, a chunk is a multiple of the rows that the block reads at once.
RowChunks ChunksOf(const LayerNormBackward& op) {
  if (op.cols > kMostHeld) return ChunkRows(op.rows);
  const int64_t at_once = kBlockWarps / WarpsPerRow(op.cols);
  const bool sums = op.dgamma || op.dbeta;
  const int64_t least = sums ? CeilDiv(op.rows, kMostRowChunks) : 1;
  const int64_t each = CeilDiv(least, at_once) * at_once;
  return {.rows_each = each, .count = CeilDiv(op.rows, each)};
}

int SumsOf(const LayerNormBackward& op) { return (op.dgamma ? 1 : 0) + (op.dbeta ? 1 : 0); }

// `sums` is scratch of SumsOf(op) * RowSumBytes(op.rows, op.cols).
template <typename T>
void LaunchBackward(Stream& stream, const LayerNormBackward& op, float* sums) {
  const RowChunks chunks = ChunksOf(op);
  const NormGradient<T> a = {
      .dy = op.dy.As<T>(),
      .x = op.x.As<float>(),
      .gamma = op.gamma.As<float>(),
      .mean = OptionalAs<float>(op.mean),
      .rstd = op.rstd.As<float>(),
      .dx = OptionalAs<float>(op.dx),
      .dgamma = op.dgamma ? sums : nullptr,
      .dbeta = op.dbeta ? sums + (op.dgamma ? chunks.count * op.cols : 0) : nullptr,
      .rows = op.rows,
      .cols = op.cols,
      .rows_each = chunks.rows_each,
      .accumulate = op.accumulate_dx,
      .warps = WarpsPerRow(op.cols)};
  if (op.cols <= kMostHeld) {
    Launch(stream, {.grid = Blocks(chunks.count)}, LayerNormBackwardKernel<T>, a);
  } else {
    const int64_t col_tiles = CeilDiv(op.cols, kChunkCols);
    // The parameters first: dx may overwrite dy.
    if (SumsOf(op) > 0) {
      Launch(stream, {.grid = Blocks(chunks.count * col_tiles)}, LongRowsParamsKernel<T>, a,
             col_tiles);
    }
    if (op.dx) {
      Launch(stream, {.grid = Blocks(CeilDiv(op.rows, kBlockWarps))}, LongRowsBackwardKernel<T>, a);
    }
  }
  if (SumsOf(op) == 0) return;
  float* const dbeta = OptionalAs<float>(op.dbeta);
  LaunchAddChunks(stream, sums, op.dgamma ? op.dgamma.As<float>() : dbeta, chunks.count, op.cols,
                  op.accumulate_params, op.dgamma ? dbeta : nullptr);
}

template <typename T>
void LaunchWhole(Stream& stream, const LayerNormBackward& op) {
  LaunchBackward<T>(stream, op, static_cast<float*>(stream.scratch));
}

// Each cut by itself, and then the sums of all.
template <typename T>
void LaunchCuts(Stream& stream, const LayerNormBackward& op) {
  const auto advance = [](Buffer& buffer, int64_t elements) {
    if (buffer) buffer = buffer.From(elements);
  };
  float* const gammas = static_cast<float*>(stream.scratch);  // [cuts, cols]
  float* const betas = gammas + (op.dgamma ? op.cuts * op.cols : 0);
  float* const rest = betas + (op.dbeta ? op.cuts * op.cols : 0);
  const int count = EachCut(op.rows, op.cuts, [&](int64_t first, int64_t end, int number) {
    LayerNormBackward cut = op;
    cut.rows = end - first;
    for (Buffer* buffer : {&cut.dy, &cut.x, &cut.dx}) advance(*buffer, first * op.cols);
    for (Buffer* buffer : {&cut.mean, &cut.rstd}) advance(*buffer, first);
    if (op.dgamma) cut.dgamma = {gammas + number * op.cols};
    if (op.dbeta) cut.dbeta = {betas + number * op.cols};
    cut.accumulate_params = false;
    LaunchBackward<T>(stream, cut, rest);
  });
  for (const auto& [sums, to] : {std::pair(gammas, op.dgamma), {betas, op.dbeta}}) {
    if (to) {
      LaunchAddCuts(stream, sums, to.template As<float>(), count, op.cols, op.accumulate_params);
    }
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const LayerNormBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    const auto launch = op.cuts > 1 && SumsOf(op) > 0 ? LaunchCuts<T> : LaunchWhole<T>;
    return Kernel{.launch = [launch, op](Stream& stream) { launch(stream, op); },
                  .scratch_bytes = SumsOf(op) * CutSumBytes(op.rows, op.cols, op.cuts)};
  });
}

}  // namespace trainyard::kernels::cuda
