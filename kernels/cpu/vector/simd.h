#pragma once

// Vectors of the instruction set that this translation unit is compiled for, through the vector
// extensions of GCC and Clang: no intrinsics, so the same text serves every set. Files in this
// folder are compiled once per set (see ../../CMakeLists.txt), each time with its own TRAINYARD_ISA
// namespace and TRAINYARD_VECTOR_BYTES. They include nothing with inline functions: the linker
// would keep one copy of such a function for all sets, possibly the one this machine cannot run.

#include <cstdint>

#include "kernels/element.h"

namespace trainyard::kernels::TRAINYARD_ISA {

inline constexpr int kLanes = TRAINYARD_VECTOR_BYTES / 4;

typedef float VecF __attribute__((vector_size(TRAINYARD_VECTOR_BYTES)));
typedef int32_t VecI __attribute__((vector_size(TRAINYARD_VECTOR_BYTES)));
typedef uint32_t VecU __attribute__((vector_size(TRAINYARD_VECTOR_BYTES)));
typedef uint16_t VecH __attribute__((vector_size(TRAINYARD_VECTOR_BYTES / 2)));
typedef float VecFMemory
    __attribute__((vector_size(TRAINYARD_VECTOR_BYTES), aligned(4), may_alias));
typedef uint16_t VecHMemory
    __attribute__((vector_size(TRAINYARD_VECTOR_BYTES / 2), aligned(2), may_alias));

#define TRAINYARD_INLINE static inline __attribute__((always_inline))

TRAINYARD_INLINE VecF Load(const float* p) { return *reinterpret_cast<const VecFMemory*>(p); }
TRAINYARD_INLINE void Store(float* p, VecF v) { *reinterpret_cast<VecFMemory*>(p) = v; }

TRAINYARD_INLINE VecU LoadBits(const void* p) {
  const VecH bits = *static_cast<const VecHMemory*>(p);
  return __builtin_convertvector(bits, VecU);
}
TRAINYARD_INLINE void StoreBits(void* p, VecU bits) {
  *static_cast<VecHMemory*>(p) = __builtin_convertvector(bits, VecH);
}

// What is stored is rounded to nearest, ties to even; NaN stays NaN.
TRAINYARD_INLINE VecF Load(const BFloat16* p) { return reinterpret_cast<VecF>(LoadBits(p) << 16); }
TRAINYARD_INLINE void Store(BFloat16* p, VecF v) {
  const VecU u = reinterpret_cast<VecU>(v);
  StoreBits(p, v == v ? (u + 0x7fff + ((u >> 16) & 1)) >> 16 : u >> 16 | 0x40);
}

// The exponent's bias moves from 15 to 127 by a product, which also makes denormals normal.
TRAINYARD_INLINE VecF Load(const Float16* p) {
  const VecU bits = LoadBits(p);
  const VecU magnitude = (bits & 0x7fff) << 13;
  const VecU finite = reinterpret_cast<VecU>(reinterpret_cast<VecF>(magnitude) * 0x1p112f);
  const VecU unsigned_bits = magnitude >= 0x7c00u << 13 ? magnitude | 0x7f800000 : finite;
  return reinterpret_cast<VecF>(unsigned_bits | (bits & 0x8000) << 16);
}
// Below the smallest normal number, adding 1/2 leaves the rounded bits at the low end. Above it,
// the bias moves back and rounding carries into the exponent, up to infinity.
TRAINYARD_INLINE void Store(Float16* p, VecF v) {
  const VecU u = reinterpret_cast<VecU>(v);
  const VecU magnitude = u & 0x7fffffff;
  const VecU denormal =
      reinterpret_cast<VecU>(reinterpret_cast<VecF>(magnitude) + 0.5f) - 0x3f000000;
  const VecU normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  VecU bits = magnitude < 113u << 23 ? denormal : normal;
  bits = magnitude >= 143u << 23 ? VecU{} + 0x7c00 : bits;
  bits = v == v ? bits : VecU{} + 0x7e00;
  StoreBits(p, bits | (u >> 16 & 0x8000));
}

// x - 0 is x for every x, also -0.
TRAINYARD_INLINE VecF Splat(float x) { return x - VecF{}; }

// 0, 1, 2, …
TRAINYARD_INLINE VecI LaneNumbers() {
  VecI lanes{};
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// The first n < kLanes elements; the rest is `fill`.
template <typename T>
TRAINYARD_INLINE VecF LoadPart(const T* p, int64_t n, float fill = 0) {
  T part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  const VecF v = Load(part);
  return fill == 0 ? v : (LaneNumbers() < static_cast<int32_t>(n) ? v : Splat(fill));
}

template <typename T>
TRAINYARD_INLINE float ToFloat(T x) {
  return LoadPart(&x, 1)[0];
}
TRAINYARD_INLINE float ToFloat(float x) { return x; }

template <typename T>
TRAINYARD_INLINE void StorePart(T* p, VecF v, int64_t n) {
  T part[kLanes];
  Store(part, v);
  for (int64_t i = 0; i < n; ++i) p[i] = part[i];
}

// n elements, at most kLanes.
template <typename T>
TRAINYARD_INLINE VecF LoadUpTo(const T* p, int64_t n) {
  return n == kLanes ? Load(p) : LoadPart(p, n);
}
template <typename T>
TRAINYARD_INLINE void StoreUpTo(T* p, VecF v, int64_t n) {
  if (n == kLanes) {
    Store(p, v);
  } else {
    StorePart(p, v, n);
  }
}

TRAINYARD_INLINE VecF Min(VecF a, VecF b) { return a < b ? a : b; }
TRAINYARD_INLINE VecF Max(VecF a, VecF b) { return a > b ? a : b; }
TRAINYARD_INLINE VecF Abs(VecF a) {
  return reinterpret_cast<VecF>(reinterpret_cast<VecI>(a) & 0x7fffffff);
}

// Lane i of the result is lane i + kBy of v, modulo the number of lanes.
template <int kBy, typename V>
TRAINYARD_INLINE V Turned(V v) {
  if constexpr (sizeof(V) == 16) {
    return __builtin_shufflevector(v, v, kBy % 4, (kBy + 1) % 4, (kBy + 2) % 4, (kBy + 3) % 4);
  } else if constexpr (sizeof(V) == 32) {
    return __builtin_shufflevector(v, v, kBy % 8, (kBy + 1) % 8, (kBy + 2) % 8, (kBy + 3) % 8,
                                   (kBy + 4) % 8, (kBy + 5) % 8, (kBy + 6) % 8, (kBy + 7) % 8);
  } else {
    return __builtin_shufflevector(v, v, kBy % 16, (kBy + 1) % 16, (kBy + 2) % 16, (kBy + 3) % 16,
                                   (kBy + 4) % 16, (kBy + 5) % 16, (kBy + 6) % 16, (kBy + 7) % 16,
                                   (kBy + 8) % 16, (kBy + 9) % 16, (kBy + 10) % 16, (kBy + 11) % 16,
                                   (kBy + 12) % 16, (kBy + 13) % 16, (kBy + 14) % 16,
                                   (kBy + 15) % 16);
  }
}

// Halves are folded onto each other with f: a fixed tree.
template <int kWidth = kLanes / 2, typename F>
TRAINYARD_INLINE float Fold(VecF v, F f) {
  if constexpr (kWidth == 0) {
    return v[0];
  } else {
    return Fold<kWidth / 2>(f(v, Turned<kWidth>(v)), f);
  }
}

TRAINYARD_INLINE float ReduceAdd(VecF v) {
  return Fold(v, [](VecF a, VecF b) { return a + b; });
}

TRAINYARD_INLINE float ReduceMax(VecF v) {
  return Fold(v, [](VecF a, VecF b) { return Max(a, b); });
}

// y[i] = f(x[i]...) for n elements, the last few through a padded vector.
template <typename X, typename Y, typename F>
TRAINYARD_INLINE void Map(int64_t n, const X* x, Y* y, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, f(Load(x + i)));
  if (i < n) StorePart(y + i, f(LoadPart(x + i, n - i)), n - i);
}

template <typename A, typename B, typename Y, typename F>
TRAINYARD_INLINE void Map(int64_t n, const A* a, const B* b, Y* y, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, f(Load(a + i), Load(b + i)));
  if (i < n) StorePart(y + i, f(LoadPart(a + i, n - i), LoadPart(b + i, n - i)), n - i);
}

// Copies n elements and converts their type.
template <typename X, typename Y>
TRAINYARD_INLINE void Copy(int64_t n, const X* x, Y* y) {
  Map(n, x, y, [](VecF v) { return v; });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
