#pragma once

#include <algorithm>

#include "kernels/cuda/pack.cuh"

namespace trainyard::kernels::cuda {

// Elements per thread. A full multiprocessor then has loads of 32 KiB and more in flight; with
// twice as many elements ptxas puts the second load behind the work on the first.
inline constexpr int kMapEach = 8;

// Elements in a pack, the same number for each of Types: 16 bytes of the widest.
template <typename... Types>
inline constexpr int kMapPack = kPackBytes / std::max({sizeof(Types)...});

inline constexpr int64_t kMapTile = int64_t{kThreads} * kMapEach;

// What a thread reads of one operand: packs, a block's width apart.
template <typename T, int kCount>
struct MapOperand {
  Pack<T, kCount> packs[kMapEach / kCount];

  __device__ explicit MapOperand(const T* at) {
#pragma unroll
    for (int k = 0; k < kMapEach / kCount; ++k) packs[k].Load(at + k * (kThreads * kCount));
  }
};

// The operands have been read completely before this writes anything.
template <int kCount, typename F, typename Y, typename... In>
__device__ void MapPacks(F f, Y* y, const MapOperand<In, kCount>&... in) {
#pragma unroll
  for (int k = 0; k < kMapEach / kCount; ++k) {
    float out[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) out[j] = f(in.packs[k][j]...);
    Pack<Y, kCount> pack;
    pack.Set(out);
    pack.Store(y + k * (kThreads * kCount));
  }
}

// y[i] = f(in[i]...) for i in [0, n). A thread writes only what it read itself, and after it has
// read it, so that y may be one of the inputs. Works element by element where a tile is not whole,
// and everywhere unless `by_packs` (all operands are aligned to packs).
template <typename F, typename Y, typename... In>
__global__ void __launch_bounds__(kThreads, 5)
    MapKernel(F f, int64_t n, bool by_packs, Y* y, const In*... in) {
  constexpr int kCount = kMapPack<Y, In...>;
  const int64_t first = blockIdx.x * kMapTile;
  if (by_packs && first + kMapTile <= n) {
    const int64_t at = first + static_cast<int>(threadIdx.x) * kCount;
    MapPacks<kCount>(f, y + at, MapOperand<In, kCount>(in + at)...);
    return;
  }
  const int64_t end = min(n, first + kMapTile);
#pragma unroll 1
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    y[i] = FromFloat<Y>(f(ToFloat(in[i])...));
  }
}

template <typename F, typename Y, typename... In>
void LaunchMap(Stream& stream, F f, int64_t n, Y* y, const In*... in) {
  if (n <= 0) return;
  constexpr int kCount = kMapPack<Y, In...>;
  bool by_packs = Aligned(kCount * sizeof(Y), {y});
  ((by_packs = by_packs && Aligned(kCount * sizeof(In), {in})), ...);
  Launch(stream, {.grid = Blocks(CeilDiv(n, kMapTile))}, MapKernel<F, Y, In...>, f, n, by_packs, y,
         in...);
}

}  // namespace trainyard::kernels::cuda
