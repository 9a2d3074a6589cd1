#pragma once

// What forward and backward of attention share: tiles of rows in shared memory and their two
// products, in plain fp32. 256 threads stand as 16 x 16; thread (tx, ty) owns the elements (ty + 16
// i, tx + 16 j) of every product, so that a row of scores and a row of the output belong to the
// same 16 neighbouring lanes.
//
// kDim is head_dim rounded up to 32, 64, 128 or 256; tiles are zero beyond head_dim and beyond the
// last row. A row of a tile is 4 floats longer than its content: rows stay 16-byte aligned, and the
// float4 reads of 8 lanes down a column fall into different banks.

#include <climits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/element.cuh"

namespace trainyard::kernels::cuda {

inline constexpr int kSide = 16;
static_assert(kSide * kSide == kThreads);

__host__ __device__ constexpr int TileStride(int content) { return content + 4; }
__host__ __device__ constexpr int TileFloats(int rows, int content) {
  return rows * TileStride(content);
}

// Where one (batch, head) lies; qkv: [batch, time, heads + 2 * kv_heads, head_dim], y: [batch,
// time, heads, head_dim].
struct AttentionShape {
  int time, heads, kv_heads, head_dim;
  float scale;
  bool causal;
  const int32_t* lengths;  // [batch], or null

  __host__ __device__ int64_t y_stride() const { return int64_t{heads} * head_dim; }
  __host__ __device__ int64_t qkv_stride() const {
    return (int64_t{heads} + 2 * kv_heads) * head_dim;
  }
  // How many neighbouring heads share a key and a value.
  __device__ int group() const { return heads / kv_heads; }
  // Offsets of the first rows of a query head, and of a key and a value.
  __device__ int64_t QStart(int64_t batch, int head) const { return Start(batch, head); }
  __device__ int64_t KStart(int64_t batch, int kv) const { return Start(batch, heads + kv); }
  __device__ int64_t VStart(int64_t batch, int kv) const {
    return Start(batch, heads + kv_heads + kv);
  }
  __device__ int64_t YStart(int64_t batch, int head) const {
    return batch * time * y_stride() + int64_t{head} * head_dim;
  }
  // Keys that are no padding: 1 to time.
  __device__ int Keys(int64_t batch) const {
    if (lengths == nullptr) return time;
    if (lengths[batch] < 1 || lengths[batch] > time) __trap();
    return lengths[batch];
  }
  __device__ bool Visible(int query, int key, int keys) const {
    return query < time && key < keys && (!causal || key <= query);
  }
  // Whether each of `queries` from first_query on sees each of `seen` keys from first_key on.
  __device__ bool AllVisible(int first_query, int queries, int first_key, int seen,
                             int keys) const {
    return first_key + seen <= keys && first_query + queries <= time &&
           (!causal || first_key + seen <= first_query + 1);
  }

 private:
  __device__ int64_t Start(int64_t batch, int place) const {
    return batch * time * qkv_stride() + int64_t{place} * head_dim;
  }
};

// Positions are counted in 32 bits, up to twice the context.
template <typename Op>
absl::Status CheckLimits(const Op& op) {
  if (op.time <= INT_MAX / 2) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("cuda ", Op::kName, ": time is over 2^30"));
}

template <typename Op>
AttentionShape ShapeOf(const Op& op) {
  return {.time = static_cast<int>(op.time),
          .heads = static_cast<int>(op.heads),
          .kv_heads = static_cast<int>(op.kv_heads),
          .head_dim = static_cast<int>(op.head_dim),
          .scale = op.scale,
          .causal = op.causal,
          .lengths = op.lengths ? op.lengths.template As<int32_t>() : nullptr};
}

// tile[r][d] = from[(first + r) * stride + d]. The caller synchronises.
template <int kRows, int kDim, typename T>
__device__ void LoadTile(float* tile, const T* from, int64_t stride, int first,
                         const AttentionShape& shape) {
  for (int i = threadIdx.x; i < kRows * kDim; i += kThreads) {
    const int r = i / kDim, d = i % kDim;
    const bool inside = first + r < shape.time && d < shape.head_dim;
    tile[r * TileStride(kDim) + d] = inside ? ToFloat(from[(first + r) * stride + d]) : 0.0f;
  }
}

// out[i][j] = sum over d of a[ty + 16 i][d] * b[tx + 16 j][d]; a, b: [kRows, kDim] tiles.
template <int kRows, int kDim>
__device__ void RowsDotRows(const float* a, const float* b,
                            float (&out)[kRows / kSide][kRows / kSide]) {
  constexpr int kEach = kRows / kSide;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) out[i][j] = 0;
  }
#pragma unroll 4
  for (int d = 0; d < kDim; d += 4) {
    float4 left[kEach], right[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      left[i] = *reinterpret_cast<const float4*>(a + (ty + kSide * i) * TileStride(kDim) + d);
      right[i] = *reinterpret_cast<const float4*>(b + (tx + kSide * i) * TileStride(kDim) + d);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        out[i][j] += left[i].x * right[j].x + left[i].y * right[j].y + left[i].z * right[j].z +
                     left[i].w * right[j].w;
      }
    }
  }
}

// p * value; with kMasked, 0 where p is 0: what a query does not see shall not reach it, not even
// as NaN.
template <bool kMasked>
__device__ inline float Weighted(float p, float value) {
  return kMasked && p == 0.0f ? 0.0f : p * value;
}

// out[i][j] += sum over k of p[ty + 16 i][k] * m[k][tx + 16 j]; p: [kRows, kRows], m: [kRows,
// kDim].
template <int kRows, int kDim, bool kMasked = false>
__device__ void RowsTimesTile(const float* p, const float* m,
                              float (&out)[kRows / kSide][kDim / kSide]) {
  constexpr int kEach = kRows / kSide, kCols = kDim / kSide;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int k = 0; k < kRows; k += 4) {
    float4 left[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      left[i] = *reinterpret_cast<const float4*>(p + (ty + kSide * i) * TileStride(kRows) + k);
    }
    const float* row = m + k * TileStride(kDim) + tx;
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const float r0 = row[kSide * j], r1 = row[TileStride(kDim) + kSide * j];
      const float r2 = row[2 * TileStride(kDim) + kSide * j];
      const float r3 = row[3 * TileStride(kDim) + kSide * j];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        out[i][j] += Weighted<kMasked>(left[i].x, r0) + Weighted<kMasked>(left[i].y, r1) +
                     Weighted<kMasked>(left[i].z, r2) + Weighted<kMasked>(left[i].w, r3);
      }
    }
  }
}

// tile[ty + 16 i][tx + 16 j] = values[i][j]; tile: [kRows, kRows].
template <int kRows>
__device__ void StoreScores(float* tile, const float (&values)[kRows / kSide][kRows / kSide]) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < kRows / kSide; ++i) {
#pragma unroll
    for (int j = 0; j < kRows / kSide; ++j) {
      tile[(ty + kSide * i) * TileStride(kRows) + tx + kSide * j] = values[i][j];
    }
  }
}

// to[(first + row) * stride + d] = values[i][j] * factor, within time and head_dim.
template <int kRows, int kDim, typename T>
__device__ void StoreRows(T* to, int64_t stride, int first, const AttentionShape& shape,
                          const float (&values)[kRows / kSide][kDim / kSide], float factor) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < kRows / kSide; ++i) {
    const int row = first + ty + kSide * i;
    if (row >= shape.time) continue;
#pragma unroll
    for (int j = 0; j < kDim / kSide; ++j) {
      const int d = tx + kSide * j;
      if (d < shape.head_dim) to[row * stride + d] = FromFloat<T>(values[i][j] * factor);
    }
  }
}

// Reductions over the 16 lanes that share a row; every lane of the warp calls.
__device__ inline float RowMax(float value) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

__device__ inline float RowTotal(float value) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

}  // namespace trainyard::kernels::cuda
