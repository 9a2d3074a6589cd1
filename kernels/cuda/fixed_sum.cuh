#pragma once

// Sums of n elements in double precision, in a tree that depends on n only: each block adds up its
// share of the elements, then one block adds up the blocks.

#include <algorithm>

#include "kernels/cuda/pack.cuh"

namespace trainyard::kernels::cuda {

static_assert(kElementsOfSumBlock % kThreads == 0);

// Neighbouring elements that a thread adds up one after the other, whatever their type: a sum has
// the same bits in 16 bits as in fp32 where its elements are the same.
inline constexpr int kSumGroup = 8;

// partial: [blocks]. f turns an element into what is added. A thread asks for 64 bytes before it
// looks at any; block 0 has what is left over.
template <typename F, typename T>
__global__ void __launch_bounds__(kThreads)
    PartialSumKernel(F f, const T* x, double* partial, int64_t n, bool by_packs) {
  constexpr int kWords = kSumGroup / kPack<T>, kAtOnce = 4 / kWords;
  const int64_t groups = n / kSumGroup, stride = int64_t{gridDim.x} * kThreads;
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < groups;
       i += kAtOnce * stride) {
    T read[kAtOnce][kSumGroup];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const T* const at = x + (i + k * stride) * kSumGroup;
      if (i + k * stride >= groups) continue;
      if (by_packs) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const auto words = LoadWhole<uint4>(at + w * kPack<T>);
          memcpy(read[k] + w * kPack<T>, &words, sizeof(words));
        }
      } else {
#pragma unroll
        for (int j = 0; j < kSumGroup; ++j) read[k][j] = at[j];
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k * stride >= groups) break;
#pragma unroll
      for (int j = 0; j < kSumGroup; ++j) sum += f(read[k][j]);
    }
  }
  const int64_t left = groups * kSumGroup + threadIdx.x;
  if (blockIdx.x == 0 && left < n) sum += f(x[left]);
  sum = BlockSum<kThreads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ static void __launch_bounds__(kThreads)
    TotalSumKernel(const double* partial, double* total, int64_t blocks, bool accumulate) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) sum += partial[i];
  sum = BlockSum<kThreads>(sum);
  if (threadIdx.x == 0) total[0] = accumulate ? total[0] + sum : sum;
}

// total[0] = sum of f(x[i]) (+ total[0] when accumulate).
template <typename F, typename T>
Kernel FixedSum(F f, const T* x, double* total, int64_t n, bool accumulate) {
  const auto launch = [=](Stream& stream) {
    double* partial = static_cast<double*>(stream.scratch);
    const int64_t blocks = SumBlocks(n);
    Launch(stream, {.grid = Blocks(blocks)}, PartialSumKernel<F, T>, f, x, partial, n,
           Aligned(kPackBytes, {x}));
    Launch(stream, {.grid = Blocks(1)}, TotalSumKernel, partial, total, blocks, accumulate);
  };
  return {.launch = launch, .scratch_bytes = FixedSumBytes(n)};
}

}  // namespace trainyard::kernels::cuda
