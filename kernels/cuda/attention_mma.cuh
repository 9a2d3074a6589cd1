#pragma once

// What forward and backward of attention on tensor cores share: tiles of rows of 16-bit elements in
// shared memory, and their two products. A block has 4 warps; warp w owns the 16 rows from 16 w on
// of every product, as fragments (mma.cuh).
//
// kDim is head_dim rounded up to 32, 64 or 128; tiles are zero beyond head_dim and beyond the last
// row. A row of a tile is 8 elements longer than its content: the 8 rows that ldmatrix reads at
// once fall into different banks.

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/fast_math.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

inline constexpr int kMmaThreads = 128;
inline constexpr int kMmaRows = 64;  // of a block: 16 a warp

template <int kDim>
__host__ __device__ constexpr int MmaStride() {
  return kDim + 8;
}
template <int kDim>
__host__ __device__ constexpr int MmaElements(int rows) {
  return rows * MmaStride<kDim>();
}

// tile[r][d] = from[(first + r) * stride + d], 0 from row `end` of `from` on. `vectors`: rows begin
// at multiples of 16 bytes and are multiples of 16 bytes long. The caller synchronises.
template <int kRows, int kDim, typename T>
__device__ void LoadMmaTile(T* tile, const T* from, int64_t stride, int first, int end,
                            int head_dim, bool vectors) {
  if (vectors) {
    constexpr int kEach = 16 / sizeof(T), kInRow = kDim / kEach;
    constexpr int kMine = kRows * kInRow / kMmaThreads;  // vectors of a thread
    constexpr int kAtOnce = kMine < 4 ? kMine : 4;       // loads in flight
    static_assert(kMine % kAtOnce == 0 && kRows * kInRow % kMmaThreads == 0);
#pragma unroll
    for (int some = 0; some < kMine; some += kAtOnce) {
      uint4 words[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = threadIdx.x + (some + j) * kMmaThreads;
        const int r = i / kInRow, d = i % kInRow * kEach;
        const bool inside = first + r < end && d < head_dim;
        words[j] = inside ? *reinterpret_cast<const uint4*>(from + (first + r) * stride + d)
                          : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = threadIdx.x + (some + j) * kMmaThreads;
        *reinterpret_cast<uint4*>(tile + i / kInRow * MmaStride<kDim>() + i % kInRow * kEach) =
            words[j];
      }
    }
    return;
  }
  for (int i = threadIdx.x; i < kRows * kDim; i += kMmaThreads) {
    const int r = i / kDim, d = i % kDim;
    const bool inside = first + r < end && d < head_dim;
    tile[r * MmaStride<kDim>() + d] = inside ? from[(first + r) * stride + d] : T{};
  }
}

// Loads fragment a (mma.cuh) of rows [first, first + 16) and columns [16 step, 16 step + 16) of a
// tile.
template <int kDim, typename T>
__device__ inline void LoadRowsFragment(uint32_t (&a)[4], const T* tile, int first, int step) {
  const int lane = threadIdx.x % kWarp;
  LoadMatrices(a, tile + (first + lane % 16) * MmaStride<kDim>() + 16 * step + lane / 16 * 8);
}

// out[n] = the product of 16 rows of `a` from `first` on with rows [8 n, 8 n + 8) of `b`.
template <int kCols, int kDim, typename T>
__device__ inline void MmaRowsDotRows(const T* a, int first, const T* b,
                                      float (&out)[kCols / 8][4]) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8;
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] = 0;
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t left[4];
    LoadRowsFragment<kDim>(left, a, first, step);
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      uint32_t right[4];
      LoadMatrices(right, b + (16 * n + matrix / 2 * 8 + lane % 8) * MmaStride<kDim>() + 16 * step +
                              matrix % 2 * 8);
      Mma<T>(out[2 * n], left, right[0], right[1]);
      Mma<T>(out[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// out[n] += p m in columns [8 n, 8 n + 8); p: 16 rows of kTerms columns, m: a tile of kTerms rows.
template <int kTerms, int kDim, typename T>
__device__ inline void MmaRowsTimesTile(const float (&p)[kTerms / 8][4], const T* m,
                                        float (&out)[kDim / 8][4]) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8;
#pragma unroll
  for (int step = 0; step < kTerms / 16; ++step) {
    const float(&near)[4] = p[2 * step];
    const float(&far)[4] = p[2 * step + 1];
    const uint32_t left[4] = {PackPair<T>(near[0], near[1]), PackPair<T>(near[2], near[3]),
                              PackPair<T>(far[0], far[1]), PackPair<T>(far[2], far[3])};
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t right[4];
      LoadTransposed(right, m + (16 * step + matrix % 2 * 8 + lane % 8) * MmaStride<kDim>() +
                                16 * n + matrix / 2 * 8);
      Mma<T>(out[2 * n], left, right[0], right[1]);
      Mma<T>(out[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// Row and column of element i of fragment n of a product, within the warp's 16 rows.
__device__ inline int MmaRow(int i) { return threadIdx.x % kWarp / 4 + i / 2 * 8; }
__device__ inline int MmaCol(int n, int i) { return 8 * n + threadIdx.x % 4 * 2 + i % 2; }

// to[(first + row) * stride + d] = values * factor[i / 2], within time and head_dim. `vectors`: as
// in LoadMmaTile.
template <int kDim, typename T>
__device__ inline void StoreMmaRows(T* to, int64_t stride, int first, const AttentionShape& shape,
                                    bool vectors, const float (&values)[kDim / 8][4],
                                    const float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + MmaRow(2 * half);
    if (row >= shape.time) continue;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int d = MmaCol(n, 0);
      const float left = values[n][2 * half] * factor[half];
      const float right = values[n][2 * half + 1] * factor[half];
      T* const place = to + row * stride + d;
      if (vectors) {
        if (d < shape.head_dim) *reinterpret_cast<uint32_t*>(place) = PackPair<T>(left, right);
        continue;
      }
      if (d < shape.head_dim) place[0] = FromFloat<T>(left);
      if (d + 1 < shape.head_dim) place[1] = FromFloat<T>(right);
    }
  }
}

// Over the 4 lanes that share a row; every lane of the warp calls.
__device__ inline float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}
__device__ inline float QuadSum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

inline constexpr float kLn2 = 0.6931471805599453f;

// Whether the kernels on tensor cores can run the op.
template <typename Op>
bool FitsMma(const Op& op) {
  return op.qkv.dtype != DType::kF32 && op.head_dim <= 128 && op.scale > 0;
}

// f.operator()<kDim, T>() for an op that fits.
template <typename Op, typename F>
absl::StatusOr<Kernel> ForMma(const Op& op, const F& f) {
  const auto of_type = [&]<typename T>() -> absl::StatusOr<Kernel> {
    if (op.head_dim <= 32) return f.template operator()<32, T>();
    if (op.head_dim <= 64) return f.template operator()<64, T>();
    return f.template operator()<128, T>();
  };
  return op.qkv.dtype == DType::kBF16 ? of_type.template operator()<BFloat16>()
                                      : of_type.template operator()<Float16>();
}

// Whether rows of head_dim elements, the first at `data`, can be read 16 bytes at a time.
inline bool InVectors(const void* data, int64_t head_dim) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && head_dim % 8 == 0;
}

}  // namespace trainyard::kernels::cuda
