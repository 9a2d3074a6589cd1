#include "kernels/cuda/attention_mma.h"

#include <cmath>

#include "kernels/cuda/attention_mma.cuh"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kKeys = 64;  // per round

// A block per tile of 64 queries of one (batch, head). The output stays in registers, rescaled
// whenever a row's maximum grows (Milakov & Gimelshein 2018; Dao 2023).
template <int kDim, typename T>
__global__ void __launch_bounds__(kMmaThreads)
    AttentionMmaKernel(const T* qkv, T* y, float* lse, AttentionShape shape, int tiles,
                       bool vectors) {
  T* q = DynamicShared<T>();  // [64, kDim], and so are k and v
  T* k = q + MmaElements<kDim>(kMmaRows);
  T* v = k + MmaElements<kDim>(kKeys);
  const int64_t pair = blockIdx.x / tiles;  // batch * heads + head
  const int64_t batch = pair / shape.heads;
  const int head = static_cast<int>(pair % shape.heads);
  // The last tiles see the most keys: they start first.
  const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x % tiles)) * kMmaRows;
  const int mine = static_cast<int>(threadIdx.x / kWarp) * 16;  // rows of this warp
  const int64_t stride = shape.qkv_stride();
  const T* k_rows = qkv + shape.KStart(batch, head / shape.group());
  const T* v_rows = qkv + shape.VStart(batch, head / shape.group());
  const float scale = shape.scale * kLog2E;  // powers of two from here on

  LoadMmaTile<kMmaRows, kDim>(q, qkv + shape.QStart(batch, head), stride, first_query, shape.time,
                              shape.head_dim, vectors);
  float out[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  const int keys = shape.Keys(batch);
  const int end = shape.causal ? min(keys, first_query + kMmaRows) : keys;
  for (int first_key = 0; first_key < end; first_key += kKeys) {
    __syncthreads();  // the last round may still be reading
    LoadMmaTile<kKeys, kDim>(k, k_rows, stride, first_key, keys, shape.head_dim, vectors);
    LoadMmaTile<kKeys, kDim>(v, v_rows, stride, first_key, keys, shape.head_dim, vectors);
    __syncthreads();
    float s[kKeys / 8][4];
    MmaRowsDotRows<kKeys, kDim>(q, mine, k, s);
    if (!shape.AllVisible(first_query, kMmaRows, first_key, kKeys, keys)) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool visible =
              shape.Visible(first_query + mine + MmaRow(i), first_key + MmaCol(n, i), keys);
          if (!visible) s[n][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row_largest = largest[half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        row_largest = fmaxf(row_largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      }
      row_largest = QuadMax(row_largest);
      // A row beyond the last query sees nothing at all; it must not turn into NaN on the way.
      const float around = row_largest == -INFINITY ? 0.0f : row_largest * scale;
      const float shrink = Exp2(largest[half] * scale - around);
      float row_total = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[n][i] = Exp2(s[n][i] * scale - around);
          row_total += s[n][i];
        }
      }
      total[half] = total[half] * shrink + QuadSum(row_total);
      largest[half] = row_largest;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        out[n][2 * half] *= shrink;
        out[n][2 * half + 1] *= shrink;
      }
    }
    MmaRowsTimesTile<kKeys, kDim>(s, v, out);
  }
  const float factor[2] = {1.0f / total[0], 1.0f / total[1]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + mine + MmaRow(2 * half);
    if (threadIdx.x % 4 != 0 || query >= shape.time) continue;
    lse[pair * shape.time + query] = largest[half] * shape.scale + logf(total[half]);
  }
  StoreMmaRows<kDim>(y + shape.YStart(batch, head), shape.y_stride(), first_query + mine, shape,
                     vectors, out, factor);
}

template <int kDim, typename T>
absl::StatusOr<Kernel> Prepared(const AttentionForward& op) {
  constexpr size_t kShared =
      (MmaElements<kDim>(kMmaRows) + 2 * MmaElements<kDim>(kKeys)) * sizeof(T);
  const auto kernel = AttentionMmaKernel<kDim, T>;
  const absl::Status allowed = AllowShared(kernel, kShared);
  if (!allowed.ok()) return allowed;
  const AttentionShape shape = ShapeOf(op);
  const int tiles = static_cast<int>(CeilDiv(op.time, kMmaRows));
  const bool vectors = InVectors(op.qkv.data, op.head_dim) && InVectors(op.y.data, op.head_dim);
  return Kernel{.launch = [op, kernel, shape, tiles, vectors](Stream& stream) {
    Launch(stream,
           {.grid = Blocks(op.batch * op.heads * tiles),
            .block = dim3(kMmaThreads),
            .shared_bytes = kShared},
           kernel, op.qkv.As<T>(), op.y.As<T>(), op.lse.As<float>(), shape, tiles, vectors);
  }};
}

}  // namespace

absl::StatusOr<Kernel> PrepareMma(const AttentionForward& op) {
  // Shared memory: 15, 27 and 51 KiB.
  return ForMma(op, [&]<int kDim, typename T>() { return Prepared<kDim, T>(op); });
}

}  // namespace trainyard::kernels::cuda
