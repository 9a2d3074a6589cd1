// The host functions of the CUDA runtime that kernels/cuda calls, on the host's own memory; those
// of streams are in stream.cc.

#include <cstdlib>
#include <cstring>
#include <memory>

#include "cuda_runtime.h"
#include "tests/gpu/emulator/stream.h"

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated by the host");
  properties->major = 8;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

// Starts as NaN, and ends where it was asked to end.
cudaError_t cudaMalloc(void** data, size_t bytes) {
  constexpr size_t kMost = size_t{1} << 34;
  if (bytes > kMost || posix_memalign(data, 256, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  trainyard::emulator::RunAll();
  std::free(data);
  return cudaSuccess;
}
// Host memory is pageable: what is copied from it is taken at once.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyHostToDevice) {
    return trainyard::emulator::Enqueue(stream, nullptr, [to, from, bytes] {
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }
  std::shared_ptr<char[]> taken(new char[bytes]);
  if (bytes > 0) std::memcpy(taken.get(), from, bytes);
  return trainyard::emulator::Enqueue(stream, nullptr, [to, taken, bytes] {
    if (bytes > 0) std::memcpy(to, taken.get(), bytes);
  });
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return trainyard::emulator::Enqueue(stream, nullptr, [=] { std::memset(data, value, bytes); });
}
