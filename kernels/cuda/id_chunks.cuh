#pragma once

// Finding the places of an id without a scan per id and without atomics: places are cut into chunks
// of 1024, each chunk is sorted by (id, place) on its own, and whoever sums an id searches every
// chunk for it. Chunks in order, places in order within a chunk: the same order as a loop on one
// core.

#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {

inline constexpr uint64_t kNoPlace = ~uint64_t{0};  // sorts last

// Sorts the keys (id << 32 | place within the chunk) that the kChunkPlaces threads of a block hold
// into chunk[0 ... kChunkPlaces): a bitonic network (Batcher 1968) in shared memory. Keys are
// distinct but for kNoPlace.
__device__ inline void SortChunk(uint64_t key, uint64_t* chunk) {
  __shared__ uint64_t keys[kChunkPlaces];
  const unsigned mine = threadIdx.x;
  keys[mine] = key;
  for (unsigned run = 2; run <= kChunkPlaces; run *= 2) {
    for (unsigned step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      const unsigned other = mine ^ step;
      if (other > mine) {
        const bool ascending = (mine & run) == 0;
        const uint64_t a = keys[mine], b = keys[other];
        if ((a > b) == ascending) {
          keys[mine] = b;
          keys[other] = a;
        }
      }
    }
  }
  __syncthreads();
  chunk[mine] = keys[mine];
}

// First position in a sorted chunk whose key is not below `key`.
__device__ inline int LowerBound(const uint64_t* chunk, uint64_t key) {
  int low = 0, high = kChunkPlaces;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (chunk[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace trainyard::kernels::cuda
