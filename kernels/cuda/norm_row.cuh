#pragma once

// How norms read rows. A group of warps of one block reads a row; the number of warps depends on
// its length alone. Each thread takes quads of neighbouring elements at equal distances, from the
// first to the last. So the order of a sum over a row depends on its length alone, too.

#include "kernels/cuda/element.cuh"

namespace trainyard::kernels::cuda {

inline constexpr int kQuad = 4;       // elements: 16 bytes of fp32
inline constexpr int kHeldQuads = 8;  // of a row, held by one thread in registers
inline constexpr int kBlockWarps = kThreads / kWarp;
inline constexpr int64_t kMostHeld = int64_t{kThreads} * kQuad * kHeldQuads;  // held by a block

// The smallest power of two of warps that hold the row in registers, at most all of a block.
inline int WarpsPerRow(int64_t cols) {
  int warps = 1;
  while (warps < kBlockWarps && int64_t{warps} * kWarp * kQuad * kHeldQuads < cols) warps *= 2;
  return warps;
}

// How a thread takes part in the rows of its block.
struct RowGroup {
  int warps;      // per row
  int64_t cols;   // 0: this thread has no row
  bool in_quads;  // cols % kQuad == 0: all rows are aligned to quads, as buffers are

  __device__ int rows_at_once() const { return kBlockWarps / warps; }
  __device__ int row() const { return static_cast<int>(threadIdx.x) / (warps * kWarp); }
  __device__ int thread() const { return static_cast<int>(threadIdx.x) % (warps * kWarp); }
  __device__ int first() const { return thread() * kQuad; }
  __device__ int step() const { return warps * kWarp * kQuad; }
};

__device__ inline RowGroup GroupOf(int warps, int64_t cols) {
  return {.warps = warps, .cols = cols, .in_quads = cols % kQuad == 0};
}

// A quad as one word of memory.
template <typename T>
struct QuadOf {
  using Words = uint2;
};
template <>
struct QuadOf<float> {
  using Words = float4;
};
template <typename T>
using QuadWords = typename QuadOf<T>::Words;

template <typename T>
__device__ const QuadWords<T>* WordsAt(const T* at) {
  return reinterpret_cast<const QuadWords<T>*>(at);
}

template <typename T>
__device__ void Unpack(const QuadWords<T>& words, float (&v)[kQuad]) {
  if constexpr (sizeof(T) == sizeof(float)) {
    v[0] = words.x, v[1] = words.y, v[2] = words.z, v[3] = words.w;
  } else {
    v[0] = ToFloat(T{static_cast<uint16_t>(words.x)});
    v[1] = ToFloat(T{static_cast<uint16_t>(words.x >> 16)});
    v[2] = ToFloat(T{static_cast<uint16_t>(words.y)});
    v[3] = ToFloat(T{static_cast<uint16_t>(words.y >> 16)});
  }
}

template <typename T>
__device__ QuadWords<T> Packed(const float (&v)[kQuad]) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return {v[0], v[1], v[2], v[3]};
  } else {
    const auto pair = [](float low, float high) {
      return FromFloat<T>(low).bits | static_cast<uint32_t>(FromFloat<T>(high).bits) << 16;
    };
    return {pair(v[0], v[1]), pair(v[2], v[3])};
  }
}

// Elements [c, c + kQuad) of `row`; zeros from element `cols` on.
template <bool kInQuads, typename T>
__device__ void Take(const T* row, int64_t c, int64_t cols, float (&v)[kQuad]) {
  if constexpr (kInQuads) {
    Unpack<T>(*WordsAt(row + c), v);
  } else {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) v[j] = c + j < cols ? ToFloat(row[c + j]) : 0.0f;
  }
}

// The same of a row that the kernel does not write, so that the load may go ahead of stores.
template <bool kInQuads>
__device__ void TakeConstant(const float* row, int64_t c, int64_t cols, float (&v)[kQuad]) {
  if constexpr (kInQuads) {
    Unpack<float>(__ldg(WordsAt(row + c)), v);
  } else {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) v[j] = c + j < cols ? __ldg(row + c + j) : 0.0f;
  }
}

template <bool kInQuads, typename T>
__device__ void Put(const float (&v)[kQuad], int64_t c, int64_t cols, T* row) {
  if constexpr (kInQuads) {
    *reinterpret_cast<QuadWords<T>*>(row + c) = Packed<T>(v);
  } else {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (c + j < cols) row[c + j] = FromFloat<T>(v[j]);
    }
  }
}

template <bool kInQuads>
struct InQuads {
  static constexpr bool value = kInQuads;
};

// Calls f(InQuads, q, c) for each quad of a row that this thread holds: its q-th, from element c
// on.
template <typename F>
__device__ void EachHeld(const RowGroup& group, F f) {
  const int first = group.first(), step = group.step(), cols = static_cast<int>(group.cols);
  if (group.in_quads) {
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) {
      if (first + q * step < cols) f(InQuads<true>(), q, first + q * step);
    }
  } else {
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) {
      if (first + q * step < cols) f(InQuads<false>(), q, first + q * step);
    }
  }
}

// What a thread holds of a row; zeros past its end. Hold issues all loads before it waits for any.
using HeldQuads = float[kHeldQuads][kQuad];
template <typename T>
__device__ void Hold(const T* row, const RowGroup& group, HeldQuads& held) {
  const int first = group.first(), step = group.step(), cols = static_cast<int>(group.cols);
  if (group.in_quads) {
    QuadWords<T> words[kHeldQuads];
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) {
      const int c = first + q * step;
      words[q] = c < cols ? *WordsAt(row + c) : QuadWords<T>{};
    }
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) Unpack<T>(words[q], held[q]);
  } else {
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) Take<false>(row, first + q * step, cols, held[q]);
  }
}

#if defined(__CUDACC__)  // the emulator of tests/gpu brings its own
// Prefetches the cache line of `at` into the L2 cache.
__device__ inline void Prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
#endif

// The same for `cols` elements from `row` on, by the threads of the group together.
template <typename T>
__device__ void PrefetchRow(const T* row, const RowGroup& group, int cols) {
  constexpr int kLine = 128 / sizeof(T);
  for (int c = group.thread() * kLine; c < cols; c += group.warps * kWarp * kLine) {
    Prefetch(row + c);
  }
}

// The sums of kCount values over the threads of each row, in a fixed order; every thread gets those
// of its row. All threads of the block call. partial: [kCount * kBlockWarps] in shared memory,
// which no thread has read since the last barrier.
template <int kCount>
__device__ void SumOverRow(const RowGroup& group, float (&values)[kCount], float* partial) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = WarpSum(values[i]);
  if (group.warps == 1) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) partial[i * kBlockWarps + warp] = values[i];
  }
  __syncthreads();
  const int first = group.row() * group.warps;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = partial[i * kBlockWarps + first];
    for (int w = 1; w < group.warps; ++w) values[i] += partial[i * kBlockWarps + first + w];
  }
}

}  // namespace trainyard::kernels::cuda
