#pragma once

// Takes the place of the toolkit's cuda_runtime.h when our device code is compiled by the host
// compiler (tests/gpu/emulator/README.md). The types and host functions are the toolkit's own; the
// words of the device language get a meaning on one CPU core.

#include <cuda_runtime_api.h>
#include <math.h>

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

// Whether a GPU would take it; `limit` is what the kernel may take of dynamic shared memory.
cudaError_t CheckGrid(const cudaLaunchConfig_t& config, size_t limit);

// Runs `thread` once for every thread of every block.
void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& thread);

// Dynamic shared memory that a kernel was allowed by cudaFuncSetAttribute, or 48 KiB.
size_t SharedLimit(const void* kernel);
void SetSharedLimit(const void* kernel, size_t bytes);

unsigned char* BlockShared();
int BlockBarrier(int predicate);  // how many threads of the block came with a predicate
void WarpBarrier();
uint64_t WarpExchange(uint64_t mine, int offset);
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

namespace trainyard::kernels::cuda {

// kernels/cuda/launch.cuh leaves this to us: `extern __shared__` has no meaning here.
template <typename T>
T* DynamicShared() {
  return reinterpret_cast<T*>(emulator::BlockShared());
}

}  // namespace trainyard::kernels::cuda
