#pragma once

// Rows of logits: a warp or a block goes over the classes of one.

#include "kernels/cuda/fast_math.cuh"
#include "kernels/cuda/pack.cuh"

namespace trainyard::kernels::cuda {

// A warp serves a row of up to kMostWarpClasses classes, a block of kThreads one of up to
// kMostBlockClasses, a block of kWideBlock a longer one. Two wide blocks fill a multiprocessor: the
// rows that a GPU works on at once then stay in its L2 cache from their first reading to their
// gradient.
inline constexpr int64_t kMostWarpClasses = 1024, kMostBlockClasses = 8192;
inline constexpr int kWideBlock = 512;
template <int kLanes>
inline constexpr int kBlockFor = kLanes < kThreads ? kThreads : kLanes;

// Neighbouring classes that a lane takes together. Which lane takes a class, and in which order,
// depends on its place in the row alone, so that the bits depend neither on the element type nor on
// where the row lies. Classes behind the last whole group go one by one.
inline constexpr int kGroup = 8;

template <typename T>
class Group {
  static constexpr int kPacks = kGroup / kPack<T>;

 public:
  __device__ void Read(const T* at, bool by_packs) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      by_packs ? packs_[p].Load(at + p * kPack<T>) : packs_[p].Gather(at + p * kPack<T>);
    }
  }
  __device__ void Write(T* at, bool by_packs) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      by_packs ? packs_[p].Store(at + p * kPack<T>) : packs_[p].Scatter(at + p * kPack<T>);
    }
  }

  __device__ float operator[](int i) const { return packs_[i / kPack<T>][i % kPack<T>]; }

  // Replaces each element by f of it.
  template <typename F>
  __device__ void Map(F f) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float values[kPack<T>];
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) values[j] = f(packs_[p][j]);
      packs_[p].Set(values);
    }
  }

 private:
  Pack<T, kPack<T>> packs_[kPacks];
};

// Calls f(group, its number) for the groups of a row that this lane has. With by_packs it reads 64
// bytes in each round before it calls f, and without kForward the rounds go from the row's end
// back.
template <bool kForward, int kLanes, typename T, typename F>
__device__ void EachGroup(const T* row, int lane, int groups, bool by_packs, F f) {
  constexpr int kAtOnce = 64 / static_cast<int>(kGroup * sizeof(T)), kOfRound = kAtOnce * kLanes;
  if (!by_packs) {
#pragma unroll 1
    for (int g = lane; g < groups; g += kLanes) {
      Group<T> group;
      group.Read(row + g * kGroup, false);
      f(group, g);
    }
    return;
  }
  const int last = (groups - 1) / kOfRound * kOfRound;
#pragma unroll 1
  for (int done = 0; done < groups; done += kOfRound) {
    const int g = (kForward ? done : last - done) + lane;
    Group<T> read[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (g + i * kLanes < groups) read[i].Read(row + (g + i * kLanes) * kGroup, true);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (g + i * kLanes < groups) f(read[i], g + i * kLanes);
    }
  }
}

// The lane that has class c.
template <int kLanes>
__device__ int LaneOf(int c, int groups) {
  return c < groups * kGroup ? c / kGroup % kLanes : c - groups * kGroup;
}

// Reductions over the kLanes threads that serve one row: a warp or the whole block, all of which
// call; RowBest once in a kernel with one `pick`, since it does not wait until an earlier one was
// read.
template <int kLanes>
__device__ float RowSum(float mine) {
  if constexpr (kLanes > kWarp) {
    return BlockSum<kLanes>(mine);
  } else {
    return WarpSum(mine);
  }
}

// pick(a, b): one of them.
template <int kLanes, typename T, typename F>
__device__ T RowBest(T mine, F pick) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    mine = pick(mine, __shfl_xor_sync(kAllLanes, mine, offset));
  }
  if constexpr (kLanes > kWarp) {
    __shared__ T of_warp[kLanes / kWarp];
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kLanes / kWarp; ++warp) mine = pick(mine, of_warp[warp]);
  }
  return mine;
}

template <int kLanes>
__device__ float RowLargest(float mine) {
  return RowBest<kLanes>(mine, [](float a, float b) { return fmaxf(a, b); });
}

template <int kLanes>
__device__ void RowSync() {
  if constexpr (kLanes > kWarp) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__device__ inline float ExpOf(float difference) { return Exp2(difference * kLog2E); }

// The largest logit of a row and the sum of exponentials, as far as a lane has seen them; the sum
// shrinks whenever a larger logit comes (Milakov & Gimelshein 2018, arXiv:1805.02867).
struct ExpSum {
  float largest = -INFINITY;
  float sum = 0;  // of exp(logit - largest)

  template <int kCount, typename X>
  __device__ void Take(const X& x) {
    float grown = largest;
#pragma unroll
    for (int i = 0; i < kCount; ++i) grown = fmaxf(grown, x[i]);
    const float from = grown == -INFINITY ? 0 : grown;
    sum *= ExpOf(largest - from);
    largest = grown;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += ExpOf(x[i] - from);
  }

  // What all lanes of the row have seen. All of them call.
  template <int kLanes>
  __device__ ExpSum OfRow() const {
    ExpSum row;
    row.largest = RowLargest<kLanes>(largest);
    const float shrink = largest == -INFINITY ? 1 : ExpOf(largest - row.largest);
    row.sum = RowSum<kLanes>(sum * shrink);
    return row;
  }
};

// launch.operator()<kLanes>() with the lanes that serve a row of so many classes.
template <typename F>
auto WithLanes(int64_t classes, const F& launch) {
  if (classes <= kMostWarpClasses) return launch.template operator()<kWarp>();
  if (classes <= kMostBlockClasses) return launch.template operator()<kThreads>();
  return launch.template operator()<kWideBlock>();
}

// Whether all rows, as many elements apart, begin where packs do.
inline bool RowsBeginAtPacks(const Buffer& rows, int64_t row_stride) {
  return Aligned(kPackBytes, {rows.data}) && row_stride * SizeOf(rows.dtype) % kPackBytes == 0;
}

// Of a kernel for that many lanes.
template <int kLanes>
Shape ShapeOfRows(int64_t rows) {
  constexpr int kBlock = kBlockFor<kLanes>;
  return {.grid = Blocks(CeilDiv(rows, kBlock / kLanes)), .block = dim3(kBlock)};
}

}  // namespace trainyard::kernels::cuda
