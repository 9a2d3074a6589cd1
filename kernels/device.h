#pragma once

// The one contract that every back end fulfils. An op is declared in kernels/ops/, listed in
// kernels/ops/list.h, and implemented under the same file name in cpu/ and cuda/.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/list.h"

namespace trainyard::kernels {

// Where launches run, one after the other. Made by a Device, used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // Scratch that the running kernel may use; at least as much as any kernel launched here asked
  // for.
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
};

// A place in the work of a stream, for the host, or another stream, to wait for. Made by a Device.
class Event {
 public:
  virtual ~Event() = default;
};

// An op bound to its memory: everything that can be decided or built was, so that a launch
// allocates nothing. The buffers must outlive it.
struct Kernel {
  std::function<void(Stream&)> launch;
  size_t scratch_bytes = 0;
  // If there is a choice to be made by measuring: makes it, for this and later ones of its kind, by
  // runs on the memory that the kernel is bound to, whose content is lost. The bits of a result do
  // not depend on it. Before the kernel is recorded.
  std::function<void(Stream&)> tune = nullptr;
};

// Kernels that run one after the other.
using Kernels = std::vector<Kernel>;

// One GPU, or the cores of a CPU slot. Thread-compatible: one thread drives it.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Description() const = 0;  // "cpu x2", "cuda:0 NVIDIA H200"

  // Whether memory is to be laid out as GPUs like it (spec.proto, Resources.device).
  virtual bool IsGpu() const { return false; }

  // Threads that its kernels run on, and whose scratch they ask for; 1 on a GPU.
  virtual int Threads() const { return 1; }

  // Floating-point operations per second of products of `type` that its maker promises; 0: unknown.
  virtual double PeakFlops(DType /*type*/) const { return 0; }

  // Most memory that was in use so far: of a GPU whatever uses it, as far as it was looked at (by
  // Allocate and here), else of the process. 0: unknown.
  virtual int64_t PeakMemoryBytes() { return 0; }

  // 64-byte aligned memory of the device, its content undefined; kResourceExhausted when there is
  // not enough. Freed with the device or by Free.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* data) = 0;

  virtual std::unique_ptr<Stream> MakeStream() = 0;

  // Whether launches return before their work is done: then it pays to enqueue more of it before
  // the results of the last are there.
  virtual bool Asynchronous() const { return false; }

  // Host memory that the device reads and writes itself where it can (pinned): a copy from or to it
  // goes on after CopyIn and CopyOut return, and does not make the host wait for earlier work.
  virtual std::shared_ptr<char[]> AllocateHost(size_t bytes) {
    return std::make_shared_for_overwrite<char[]>(bytes);
  }

  // Copies are ordered with the launches of the stream. Host memory of AllocateHost is in use until
  // an event behind the copy was waited for; of other memory, that of CopyIn may be reused at once,
  // and that of CopyOut is valid after Synchronize.
  virtual void CopyIn(Stream& stream, void* device_to, const void* host_from, size_t bytes) = 0;
  virtual void CopyOut(Stream& stream, void* host_to, const void* device_from, size_t bytes) = 0;
  // Within the device's memory, from one place to another that does not overlap it.
  virtual void Copy(Stream& stream, void* device_to, const void* device_from, size_t bytes) = 0;

  // Memory of the device for the host to read in place, as it is after Synchronize; nullptr where
  // only CopyOut reads it.
  virtual const void* HostView(const void* /*device_data*/) const { return nullptr; }

  // Waits for the stream. A fault of the device is kInternal here, or kResourceExhausted when it
  // had no memory for the code of a kernel, say, and everywhere after: the process should end.
  virtual absl::Status Synchronize(Stream& stream) = 0;

  // RecordEvent: it lies behind all that was enqueued so far, and no longer where it was before.
  // Wait: the host waits for what lies before it; for nothing, if it was never recorded. Faults as
  // of Synchronize.
  virtual std::unique_ptr<Event> MakeEvent() { return std::make_unique<Event>(); }
  virtual void RecordEvent(Event& /*event*/, Stream& /*stream*/) {}
  virtual absl::Status Wait(Event& /*event*/) { return absl::OkStatus(); }
  // What is enqueued on `stream` from now on runs after what lies before the event now.
  virtual void StreamWait(Stream& /*stream*/, const Event& /*event*/) {}

  // One launch that does what those of `program` do, in order, for what runs many times: a GPU
  // records them as one graph. All were launched on `stream` before, and its scratch stays where it
  // is for as long as the result is launched.
  virtual absl::StatusOr<Kernel> Record(Stream& stream, std::shared_ptr<const Kernels> program) = 0;

  // kUnimplemented: the back end has no kernel for these types or shapes.
#define TY_PREPARE(Op) virtual absl::StatusOr<Kernel> Prepare(const Op& op) = 0;
  TY_FOR_EACH_OP(TY_PREPARE)
#undef TY_PREPARE
};

// The CPU back end on `threads` threads (1 to the machine's).
absl::StatusOr<std::unique_ptr<Device>> OpenCpu(int threads);

// GPU `index`, which keeps what it measured in `cache_folder`, if not "". kUnavailable: built
// without CUDA, no driver, or no such GPU.
absl::StatusOr<std::unique_ptr<Device>> OpenCuda(int index, const std::string& cache_folder = "");

}  // namespace trainyard::kernels
