#pragma once

// Vectors of the instruction set that this translation unit is compiled for, through GCC's vector
// extensions: no intrinsics, so the same text serves every set. Files in this folder are compiled
// once per set (see ../../CMakeLists.txt), each time with its own TRAINYARD_ISA namespace and
// TRAINYARD_VECTOR_BYTES. They include nothing with inline functions: the linker would keep one
// copy of such a function for all sets, possibly the one this machine cannot run.

#include <cstdint>

namespace trainyard::kernels::TRAINYARD_ISA {

inline constexpr int kLanes = TRAINYARD_VECTOR_BYTES / 4;

typedef float VecF __attribute__((vector_size(TRAINYARD_VECTOR_BYTES)));
typedef int32_t VecI __attribute__((vector_size(TRAINYARD_VECTOR_BYTES)));
typedef float VecFMemory
    __attribute__((vector_size(TRAINYARD_VECTOR_BYTES), aligned(4), may_alias));

#define TRAINYARD_INLINE static inline __attribute__((always_inline))

TRAINYARD_INLINE VecF Load(const float* p) { return *reinterpret_cast<const VecFMemory*>(p); }
TRAINYARD_INLINE void Store(float* p, VecF v) { *reinterpret_cast<VecFMemory*>(p) = v; }

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

// Halves are folded onto each other with f: a fixed tree.
template <typename F>
TRAINYARD_INLINE float Fold(VecF v, F f) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    VecI from{};
    for (int i = 0; i < kLanes; ++i) from[i] = (i + width) % kLanes;
    v = f(v, __builtin_shuffle(v, from));
  }
  return v[0];
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

// From one element type to another.
template <typename X, typename Y>
TRAINYARD_INLINE void Copy(int64_t n, const X* x, Y* y) {
  Map(n, x, y, [](VecF v) { return v; });
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
