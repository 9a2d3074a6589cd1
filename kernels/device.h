#pragma once

// The one contract that every back end fulfils. An op is declared in kernels/ops/, listed in
// kernels/ops/list.h, and implemented under the same file name in cpu/ and cuda/.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/check.h"
#include "kernels/links.h"
#include "kernels/ops/list.h"

namespace trainyard::kernels {

// A queue of launches that run one after the other. Made by a Device, used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // Scratch memory for the running kernel, at least as large as any kernel launched on this stream
  // asked for.
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
};

// A point in the work of a stream, which the host or another stream can wait for. Made by a Device.
class Event {
 public:
  virtual ~Event() = default;
};

// An op bound to its memory. Everything is decided and built when it is prepared, so that a launch
// allocates nothing. The buffers must outlive the kernel.
struct Kernel {
  std::function<void(Stream&)> launch;
  size_t scratch_bytes = 0;
  // Set if there is an algorithm to choose by measuring. Chooses for this kernel and for later ones
  // of its kind by trial runs on the memory that the kernel is bound to, whose content is lost. The
  // bits of a result do not depend on which algorithm is the fastest. Called before the kernel is
  // recorded.
  std::function<void(Stream&)> tune = nullptr;
};

// Kernels that run one after the other.
using Kernels = std::vector<Kernel>;

// One GPU, or the cores of a CPU slot. Thread-compatible: one thread drives it.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Description() const = 0;  // "cpu x2", "cuda:0 NVIDIA H200"

  // What the bits of a kernel's result depend on beside the op, value by name; short and printable
  // ASCII without colons and semicolons.
  virtual std::map<std::string, std::string> Arithmetic() const = 0;

  // Whether plans should lay out memory for a GPU (spec.proto, Resources.device).
  virtual bool IsGpu() const { return false; }

  // The number of threads that kernels run on and ask for scratch for; 1 on a GPU.
  virtual int Threads() const { return 1; }

  // Peak floating-point operations per second of products of `type`, by the vendor's data sheet; 0:
  // unknown.
  virtual double PeakFlops(DType /*type*/) const { return 0; }

  // The most memory that was in use so far, 0: unknown. On a GPU it is that of all processes,
  // sampled by Allocate and by this call; on a CPU it is that of this process.
  virtual int64_t PeakMemoryBytes() { return 0; }

  // 64-byte aligned memory of the device, its content undefined; kResourceExhausted when there is
  // not enough. Freed with the device or by Free.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* data) = 0;

  virtual std::unique_ptr<Stream> MakeStream() = 0;

  // Whether launches return before their work is done. If so, it pays to enqueue the next work
  // before the results of the last are there.
  virtual bool Asynchronous() const { return false; }

  // Host memory that the device reads and writes directly where it can (pinned). A copy from or to
  // it goes on after CopyIn or CopyOut returns, and does not make the host wait for earlier work.
  virtual std::shared_ptr<char[]> AllocateHost(size_t bytes) {
    return std::make_shared_for_overwrite<char[]>(bytes);
  }

  // Copies are ordered with the launches of the stream. Memory from AllocateHost is in use until
  // the host has waited for an event recorded after the copy. Other host memory may be reused once
  // CopyIn returns, and holds the result of CopyOut only after Synchronize.
  virtual void CopyIn(Stream& stream, void* device_to, const void* host_from, size_t bytes) = 0;
  virtual void CopyOut(Stream& stream, void* host_to, const void* device_from, size_t bytes) = 0;
  // Copies within the device's memory; the two ranges do not overlap.
  virtual void Copy(Stream& stream, void* device_to, const void* device_from, size_t bytes) = 0;

  // Where the host can read device memory in place, as it is after Synchronize; nullptr where only
  // CopyOut reads it.
  virtual const void* HostView(const void* /*device_data*/) const { return nullptr; }

  // Waits for the work of the stream. Returns kInternal after a fault of the device, or
  // kResourceExhausted when the device lacked memory, for the code of a kernel for instance. The
  // fault stays: every later call returns it, and the process should end.
  virtual absl::Status Synchronize(Stream& stream) = 0;

  // RecordEvent moves the event behind all work enqueued on the stream so far. Wait makes the host
  // wait for the work before the event, or for nothing if the event was never recorded; it returns
  // faults as Synchronize does.
  virtual std::unique_ptr<Event> MakeEvent() { return std::make_unique<Event>(); }
  virtual void RecordEvent(Event& /*event*/, Stream& /*stream*/) {}
  virtual absl::Status Wait(Event& /*event*/) { return absl::OkStatus(); }
  // Whether Wait would return at once. Where that cannot be asked, waits and says so.
  virtual absl::StatusOr<bool> Passed(Event& event) {
    if (absl::Status waited = Wait(event); !waited.ok()) return waited;
    return true;
  }
  // Work enqueued on `stream` from now on runs after the work that lies before the event now.
  virtual void StreamWait(Stream& /*stream*/, const Event& /*event*/) {}

  // Makes one launch that does what those of `program` do, in order, for programs that run many
  // times: a GPU records them as one graph. Every kernel was launched on `stream` before, and the
  // stream's scratch stays where it is for as long as the result is launched.
  virtual absl::StatusOr<Kernel> Record(Stream& stream, std::shared_ptr<const Kernels> program) = 0;

  // Links with the devices of other processes, each of which makes one of the ranks of a gang from
  // the same name. Link begins, and Links::Ready says when it is done. kUnimplemented: not with
  // this device. kFailedPrecondition: the library for it is missing. kUnavailable: the others
  // cannot be reached.
  virtual absl::StatusOr<LinksId> NameLinks() { return NoLinks(); }
  virtual absl::StatusOr<std::unique_ptr<Links>> Link(const LinksId& /*id*/, int /*rank*/,
                                                      int /*size*/) {
    return NoLinks();
  }

  // kInvalidArgument or kUnimplemented: the op is not as it is declared (check.h).
  // kUnimplemented: the back end has no kernel for its shapes.
  template <typename Op>
  absl::StatusOr<Kernel> Prepare(const Op& op) {
    if (absl::Status ok = CheckOp(op); !ok.ok()) return ok;
    return Bind(op);
  }

 private:
  absl::Status NoLinks() const {
    return absl::UnimplementedError(Description() + " is linked with no other device");
  }

 protected:
  // Prepare of an op that is as it is declared.
#define TY_BIND(Op) virtual absl::StatusOr<Kernel> Bind(const Op& op) = 0;
  TY_FOR_EACH_OP(TY_BIND)
#undef TY_BIND
};

// Opens the CPU back end on `threads` threads, which change no bit of any result and may be more
// than the machine has. kInvalidArgument unless they are from 1 to 4096.
absl::StatusOr<std::unique_ptr<Device>> OpenCpu(int threads);

// Opens GPU `index`. Measured algorithms and compiled plans are kept in `cache_folder` unless it is
// "". kUnavailable: built without CUDA, no driver, or no such GPU.
absl::StatusOr<std::unique_ptr<Device>> OpenCuda(int index, const std::string& cache_folder = "");

}  // namespace trainyard::kernels
