#pragma once

// How our own kernels are launched, and the few device functions that they share.

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime.h"

namespace trainyard::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// With 256 threads, each may have up to 255 registers, and every multiprocessor since 8.0 holds a
// whole number of blocks.
inline constexpr int kThreads = 256;

struct Shape {
  dim3 grid;
  dim3 block = dim3(kThreads);
  size_t shared_bytes = 0;
};

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Grids are counted along x alone, up to 2^31 - 1 blocks; callers divide by at least kThreads
// elements or whole rows, so that no tensor that fits into memory comes near it.
inline dim3 Blocks(int64_t count) { return dim3(static_cast<unsigned>(count)); }

// A thread for each of `n` elements.
inline Shape ThreadForEach(int64_t n) { return {.grid = Blocks(CeilDiv(n, kThreads))}; }

// Asynchronous; a launch that fails is noted as the device's fault.
template <typename... Parameters, typename... Arguments>
void Launch(Stream& stream, const Shape& shape, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  CudaStream& on = CudaStream::From(stream);
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = on.handle();
  on.fault().Note(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
                  "kernel launch");
}

// Lets `kernel` take `bytes` of dynamic shared memory on the current device; past 48 KiB it must be
// asked for. kUnimplemented when the GPU has less.
template <typename... Parameters>
absl::Status AllowShared(void (*kernel)(Parameters...), size_t bytes) {
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::UnimplementedError(
      absl::StrCat("cuda: the kernel needs ", bytes,
                   " bytes of shared memory per block: ", cudaGetErrorString(error)));
}

#if defined(__CUDACC__)
// The block's dynamic shared memory. (The emulator of tests/gpu brings its own.)
template <typename T>
__device__ T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  return reinterpret_cast<T*>(dynamic_shared);
}
#endif

// Whether the step is taken; if not (grad_scale is NaN), an update leaves its results as they are
// (ClipScale). Null: it is taken.
__device__ inline bool IsTaken(const float* grad_scale) {
  return grad_scale == nullptr || grad_scale[0] == grad_scale[0];
}

// Sums over the lanes of a warp in the same tree each time; every lane gets the result.
template <typename T>
__device__ inline T WarpSum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// Sum over a block of kBlock threads, in a fixed tree; every thread gets the result. All threads
// call.
template <int kBlock, typename T>
__device__ inline T BlockSum(T value) {
  static_assert(kBlock % kWarp == 0 && kBlock <= 1024);
  __shared__ T of_warp[kBlock / kWarp];
  value = WarpSum(value);
  __syncthreads();  // an earlier call may still be reading
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  T sum = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kBlock / kWarp; ++warp) sum += of_warp[warp];
  return sum;
}

}  // namespace trainyard::kernels::cuda
