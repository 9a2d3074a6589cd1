#pragma once

// What both ways of computing the gradient of attention share.

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/ops/attention.h"

namespace trainyard::kernels::cuda {

template <typename T>
struct BackwardArguments {
  const T* dy;  // [batch, time, heads, head_dim], and so is y
  const T* y;
  const T* qkv;      // [batch, time, heads + 2 * kv_heads, head_dim], and so is dqkv
  const float* lse;  // [batch, heads, time], and so is delta
  float* delta;
  T* dqkv;
  AttentionShape shape;
  int tiles;  // of kRows rows, over time
};

// delta: the sum of dy * y over each row of y. A warp per row.
template <typename T>
__global__ void __launch_bounds__(kThreads) DeltaKernel(BackwardArguments<T> a, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;  // the whole warp; row = (batch * time + t) * heads + head
  const int64_t head = row % a.shape.heads, place = row / a.shape.heads;
  const int64_t batch = place / a.shape.time, t = place % a.shape.time;
  const int dim = a.shape.head_dim;
  float sum = 0;
  for (int d = threadIdx.x % kWarp; d < dim; d += kWarp) {
    sum += ToFloat(a.dy[row * dim + d]) * ToFloat(a.y[row * dim + d]);
  }
  sum = WarpSum(sum);
  if (threadIdx.x % kWarp == 0) {
    a.delta[(batch * a.shape.heads + head) * a.shape.time + t] = sum;
  }
}

template <typename T>
BackwardArguments<T> ArgumentsOf(const AttentionBackward& op, int tile_rows) {
  return {.dy = op.dy.As<T>(),
          .y = op.y.As<T>(),
          .qkv = op.qkv.As<T>(),
          .lse = op.lse.As<float>(),
          .delta = nullptr,
          .dqkv = op.dqkv.As<T>(),
          .shape = ShapeOf(op),
          .tiles = static_cast<int>(CeilDiv(op.time, tile_rows))};
}

// delta: [batch, heads, time], `rows` elements.
template <typename T>
void LaunchDelta(Stream& stream, const BackwardArguments<T>& a, int64_t rows) {
  Launch(stream, {.grid = Blocks(CeilDiv(rows, kThreads / kWarp))}, DeltaKernel<T>, a, rows);
}

}  // namespace trainyard::kernels::cuda
