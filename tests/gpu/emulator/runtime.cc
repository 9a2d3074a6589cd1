// The host functions of the CUDA runtime that kernels/cuda calls, on the host's own memory; those
// of streams are in stream.cc.

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include "cuda_runtime.h"
#include "tests/gpu/emulator/element.h"
#include "tests/gpu/emulator/stream.h"

namespace {

constexpr int kDevices = 8;

}  // namespace

const float* trainyard::emulator::HalfNumbers() {
  static const std::vector<float> numbers = [] {
    std::vector<float> all(1 << 16);
    for (size_t bits = 0; bits < all.size(); ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      all[bits] = Get(Element::kF16, &half, 0);
    }
    return all;
  }();
  return numbers.data();
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
// All are the memory and the cores of the host.
cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < kDevices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated by the host");
  properties->major = 8;
  properties->sharedMemPerBlockOptin = trainyard::emulator::MostShared();
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
// Of 16 GiB.
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = size_t{1} << 34;
  *free = *total / 2;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  trainyard::emulator::RunAll();
  std::free(data);
  return cudaSuccess;
}

namespace {

// Pinned blocks by their start.
std::map<const char*, size_t>& Pinned() {
  static std::map<const char*, size_t>& pinned = *new std::map<const char*, size_t>;
  return pinned;
}

bool IsPinned(const void* data) {
  const char* const at = static_cast<const char*>(data);
  const auto after = Pinned().upper_bound(at);
  return after != Pinned().begin() && at < std::prev(after)->first + std::prev(after)->second;
}

}  // namespace

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  if (posix_memalign(data, 256, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, bytes);
  Pinned()[static_cast<char*>(*data)] = bytes;
  return cudaSuccess;
}
// Waits for nobody: who frees what a copy still needs is found out.
cudaError_t cudaFreeHost(void* data) {
  if (Pinned().erase(static_cast<char*>(data)) == 0) return cudaErrorInvalidValue;
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  trainyard::emulator::RunAll();
  return cudaSuccess;
}
// Pageable memory that is copied from is taken at once, pinned memory when the copy's turn comes.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyHostToDevice || IsPinned(from)) {
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
cudaError_t cudaMemset2DAsync(void* data, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return trainyard::emulator::Enqueue(stream, nullptr, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memset(static_cast<char*>(data) + row * pitch, value, width);
    }
  });
}
