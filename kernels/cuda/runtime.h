#pragma once

// The CUDA runtime in owning types, and how its errors travel.

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/device.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::kernels::cuda {

// kResourceExhausted for lack of memory, kInternal for everything else that went wrong.
absl::Status ToStatus(cudaError_t error, absl::string_view doing);

// The first thing that went wrong on a device. A faulted context cannot be trusted any more, so the
// first fault stays; launches cannot return it, Synchronize does.
class Fault {
 public:
  void Note(absl::Status status) {
    if (first_.ok()) first_ = std::move(status);
  }
  void Note(cudaError_t error, absl::string_view doing) {
    if (error != cudaSuccess) Note(ToStatus(error, doing));
  }
  // OK, or the first fault: kResourceExhausted for lack of memory, else kInternal.
  absl::Status status() const;

 private:
  absl::Status first_;
};

// A stream that does not wait for the default stream. `fault` outlives it.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(Fault& fault);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t handle() const { return handle_; }
  Fault& fault() const { return fault_; }

  // The CudaStream that the contract's `stream` is: a stream is used only with the device that made
  // it.
  static CudaStream& From(Stream& stream) { return static_cast<CudaStream&>(stream); }

 private:
  Fault& fault_;
  cudaStream_t handle_ = nullptr;
};

// An event of the contract. `fault` outlives it.
class CudaEvent final : public Event {
 public:
  explicit CudaEvent(Fault& fault);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t handle() const { return handle_; }

  static const CudaEvent& From(const Event& event) { return static_cast<const CudaEvent&>(event); }

 private:
  cudaEvent_t handle_ = nullptr;
};

// Device memory with an owner.
struct DeviceFree {
  void operator()(void* data) const { cudaFree(data); }
};
using DeviceMemory = std::unique_ptr<void, DeviceFree>;

// Where the workspace of cuBLASLt or cuDNN starts, wherever the scratch does.
inline void* AlignWorkspace(void* scratch) {
  const auto at = reinterpret_cast<uintptr_t>(scratch);
  return reinterpret_cast<void*>((at + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign);
}

}  // namespace trainyard::kernels::cuda
