#pragma once

// Takes the place of the toolkit's cuda_runtime.h when our device code is compiled by the host
// compiler (tests/gpu/emulator/README.md). The types and host functions are the toolkit's own; the
// words of the device language get a meaning on one CPU core.

#include <cuda_runtime_api.h>
#include <math.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/gpu/emulator/stream.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // blocks run one after the other
#define __launch_bounds__(...)

namespace trainyard::emulator {

enum class Axis { kThread, kBlock, kBlocks };

// A coordinate of the device thread that runs now.
template <Axis kAxis>
struct Coordinate {
  operator unsigned() const;
};
template <>
Coordinate<Axis::kThread>::operator unsigned() const;
template <>
Coordinate<Axis::kBlock>::operator unsigned() const;
template <>
Coordinate<Axis::kBlocks>::operator unsigned() const;

// Whether a GPU would take it; `limit` is what the kernel may take of dynamic shared memory.
cudaError_t CheckGrid(const cudaLaunchConfig_t& config, size_t limit);

// Runs `thread` once for every thread of every block.
void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& thread);

// Dynamic shared memory that a kernel was allowed by cudaFuncSetAttribute, or 48 KiB.
size_t SharedLimit(const void* kernel);
void SetSharedLimit(const void* kernel, size_t bytes);

// The most that any kernel may be allowed. Setting it takes back what kernels were allowed before.
size_t MostShared();
void SetMostShared(size_t bytes);

unsigned char* BlockShared();
bool IsBlockShared(const void* at, size_t bytes);
int BlockBarrier(int predicate);  // how many threads of the block came with a predicate
void WarpBarrier();
uint64_t WarpExchange(uint64_t mine, int offset);
void WarpGather(const void* mine, size_t bytes,
                void* all);  // all: what each lane gave, 8, 16, 24 or 32 bytes
const float* HalfNumbers();  // fp16 by its bits
[[noreturn]] void Trap();

}  // namespace trainyard::emulator

namespace trainyard::emulator {

template <Axis kAxis>
struct Coordinates {
  Coordinate<kAxis> x;
};

}  // namespace trainyard::emulator

inline constexpr trainyard::emulator::Coordinates<trainyard::emulator::Axis::kThread> threadIdx;
inline constexpr trainyard::emulator::Coordinates<trainyard::emulator::Axis::kBlock> blockIdx;
inline constexpr trainyard::emulator::Coordinates<trainyard::emulator::Axis::kBlocks> gridDim;

inline void __syncthreads() { trainyard::emulator::BlockBarrier(0); }
inline int __syncthreads_or(int predicate) {
  return trainyard::emulator::BlockBarrier(predicate != 0) > 0;
}
inline void __syncwarp() { trainyard::emulator::WarpBarrier(); }
[[noreturn]] inline void __trap() { trainyard::emulator::Trap(); }

template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int offset) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = trainyard::emulator::WarpExchange(bits, offset);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
T __ldg(const T* at) {
  return *at;
}

inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }

// Of a GPU: x / y within two units in the last place, 0 for finite x and y past 2^126.
inline float __fdividef(float x, float y) {
  return fabsf(y) > 0x1p126f && !isinf(x) ? copysignf(0.0f, y) * x : x / y;
}

template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const void* code = reinterpret_cast<const void*>(kernel);
  const cudaError_t fits =
      trainyard::emulator::CheckGrid(*config, trainyard::emulator::SharedLimit(code));
  if (fits != cudaSuccess) return fits;
  return trainyard::emulator::Enqueue(
      config->stream, code,
      [config = *config, kernel, taken = std::tuple<Parameters...>(arguments...)] {
        trainyard::emulator::RunGrid(config, [&] { std::apply(kernel, taken); });
      });
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                 int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
  *attributes = {};
  return cudaSuccess;
}

#include "kernels/element.h"

namespace trainyard::kernels::cuda {

// kernels/cuda/fast_math.cuh leaves this to us.
inline float Exp2(float x) { return exp2f(x); }

// kernels/cuda/mma.cuh leaves these to us. A lane's fragment is what others read of it;
// the sum of a product is taken in double precision, in whatever order a tensor core has.
template <typename T>
void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct alignas(8) Fragment {
    uint32_t a[4], b[2];
  };
  const Fragment mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  Fragment of[32];
  emulator::WarpGather(&mine, sizeof(mine), of);
  const auto value = [](uint32_t word, int half) {
    const auto bits = static_cast<uint16_t>(word >> 16 * half);
    if constexpr (!std::is_same_v<T, BFloat16>) return emulator::HalfNumbers()[bits];
    return std::bit_cast<float>(uint32_t{bits} << 16);
  };
  const int lane = threadIdx.x % 32;
  float left[2][16], right[2][16];  // of rows g and g + 8; of columns 2t and 2t + 1
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      left[half][k] = value(of[lane / 4 * 4 + k % 8 / 2].a[half + k / 8 * 2], k % 2);
      right[half][k] = value(of[(lane % 4 * 2 + half) * 4 + k % 8 / 2].b[k / 8], k % 2);
    }
  }
  for (int i = 0; i < 4; ++i) {
    double sum = c[i];
    for (int k = 0; k < 16; ++k) sum += double{left[i / 2][k]} * right[i % 2][k];
    c[i] = static_cast<float>(sum);
  }
}

inline void LoadMatrix(uint32_t (&word)[4], const void* row, bool transposed) {
  const uint16_t* rows[32];
  emulator::WarpGather(&row, sizeof(row), rows);
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0 || !emulator::IsBlockShared(row, 16)) {
    emulator::Trap();
  }
  const int lane = threadIdx.x % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto element = [&](int r, int c) { return uint32_t{rows[8 * matrix + r][c]}; };
    const int g = lane / 4, t = lane % 4 * 2;
    word[matrix] = transposed ? element(t, g) | element(t + 1, g) << 16
                              : element(g, t) | element(g, t + 1) << 16;
  }
}
inline void LoadMatrices(uint32_t (&word)[4], const void* row) { LoadMatrix(word, row, false); }
inline void LoadTransposed(uint32_t (&word)[4], const void* row) { LoadMatrix(word, row, true); }

// kernels/cuda/norm_row.cuh leaves this to us: nothing is early here.
inline void Prefetch(const void* /*at*/) {}

// kernels/cuda/pack.cuh leaves these to us. Where a GPU would fault the program ends.
template <typename Words>
Words LoadWhole(const void* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(Words) != 0) emulator::Trap();
  Words words;
  memcpy(&words, at, sizeof(words));
  return words;
}
template <typename Words>
void StoreWhole(void* at, const Words& words) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(Words) != 0) emulator::Trap();
  memcpy(at, &words, sizeof(words));
}

// kernels/cuda/launch.cuh leaves this to us: `extern __shared__` has no meaning here.
template <typename T>
T* DynamicShared() {
  return reinterpret_cast<T*>(emulator::BlockShared());
}

}  // namespace trainyard::kernels::cuda
