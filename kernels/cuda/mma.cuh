#pragma once

// Products of small tiles on tensor cores, by a warp together (PTX ISA 9, "Matrix
// multiply-accumulate operation using mma instruction", m16n8k16, and "ldmatrix"). In what follows
// lane = 4 g + t.
//
// A fragment holds two neighbouring 16-bit elements in each of its words:
//   a [16, 16]: rows g, g + 8, g, g + 8 by columns 2t, 2t, 2t + 8, 2t + 8 (and the next ones)
//   b [16, 8]:  rows 2t and 2t + 8 (and the next ones) of column g
//   c [16, 8], fp32: rows g, g, g + 8, g + 8 by columns 2t, 2t + 1, 2t, 2t + 1
// so that two neighbouring c, rounded, are the a of a product that follows.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/element.cuh"

namespace trainyard::kernels::cuda {

// Two values as neighbours in a word, the first in its lower half.
template <typename T>
__device__ inline uint32_t PackPair(float first, float second) {
  uint32_t word = 0;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
    memcpy(&word, &both, sizeof(word));
  } else {
    const __half2 both = __floats2half2_rn(first, second);
    memcpy(&word, &both, sizeof(word));
  }
  return word;
}

#if defined(__CUDACC__)  // the emulator of tests/gpu brings its own

// c += a b.
template <typename T>
__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four matrices of 8 x 8 elements of 16 bits: lane i names row i % 8 of matrix i / 8 in shared
// memory, 16 bytes at a multiple of 16. word[m]: of matrix m row g, columns 2t and 2t + 1.
__device__ inline void LoadMatrices(uint32_t (&word)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The same of the transposed matrices: word[m] has rows 2t and 2t + 1 of column g.
__device__ inline void LoadTransposed(uint32_t (&word)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

#endif

}  // namespace trainyard::kernels::cuda
