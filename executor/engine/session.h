#pragma once

// A plan on a device: its memory and its streams.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executor/engine/parallel/device_communicator.h"
#include "executor/engine/partial_sum.h"
#include "executor/engine/upload_queue.h"
#include "executor/plan/graph/plan.h"
#include "kernels/device.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

class Session;

// Kernels that run together many times: from the second time on as one launch that the device
// recorded.
class Program {
 public:
  Program() = default;
  explicit Program(kernels::Kernels kernels)
      : kernels_(std::make_shared<const kernels::Kernels>(std::move(kernels))) {}

  bool empty() const { return kernels_ == nullptr; }
  const kernels::Kernels& kernels() const { return *kernels_; }  // not of an empty one

 private:
  friend class Session;
  std::shared_ptr<const kernels::Kernels> kernels_;
  bool ran_ = false;
  std::optional<kernels::Kernel> recorded_;
  const void* scratch_ = nullptr;  // with which recorded_ was recorded
};

// `spec` as it is to be planned for `device`, which runs one of `ranks` ranks: if it names no
// device and `device` is a GPU, it names CUDA.
v1::JobSpec PlannedFor(const kernels::Device& device, v1::JobSpec spec, int ranks = 1);

// Owns the arena, the kernels' scratch, the upload queue and the stream; of the engine only
// AcrossGpus holds other device memory, for what is received. Thread-compatible. `device` and
// `plan` must outlive it.
class Session {
 public:
  // Allocates arena and upload queue; their content is undefined until Zero. kResourceExhausted
  // says how much was asked for.
  static absl::StatusOr<std::unique_ptr<Session>> Open(kernels::Device& device,
                                                       const plan::Plan& plan);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const plan::Plan& plan() const { return plan_; }
  kernels::Device& device() { return device_; }
  kernels::Stream& stream() { return *stream_; }

  // From now on work that is launched may have to wait for other ranks of `links`: whoever waits
  // for the device gives up when `links` does (DeviceCommunicator::Await), with the fault kGang.
  // `links` must outlive the session.
  void WaitBy(DeviceCommunicator& links);

  // `status`, of an exchange between devices, with the fault kGang, unless this rank's own device
  // is at fault. Not while a stream is recorded.
  absl::Status OfGang(const absl::Status& status);

  // Zeroes `region` of the arena.
  absl::Status Zero(const plan::Region& region);

  // Enqueues kernels::DrawNormal for all of a tensor; of a shard, what the whole has there.
  absl::Status DrawNormal(plan::TensorId id, uint64_t seed, uint64_t stream, double std);

  // Prepares `ops` and makes sure that there is scratch enough for them. Waits for the stream. Of
  // tensors that have several places they touch those that `of` says.
  absl::StatusOr<kernels::Kernels> Prepare(const std::vector<plan::Op>& ops,
                                           const plan::Instance& of = {});

  // Lets the kernels that have a choice make it by measuring (kernels::Kernel::tune); the arena's
  // content is lost.
  void Tune(const kernels::Kernels& program);

  // Enqueues the program; the second time, and when the scratch has moved, it is recorded first.
  absl::Status Run(Program& program);

  void Launch(const kernels::Kernel& kernel) { kernel.launch(*stream_); }
  void Launch(const kernels::Kernels& program) {
    for (const kernels::Kernel& kernel : program) Launch(kernel);
  }

  // Copies into and out of a tensor, `offset` bytes from its start; ordered with launches.
  // kernels::Device says of CopyIn and CopyOut how long host memory stays in use.
  void Write(plan::TensorId id, const void* from, size_t bytes, size_t offset = 0);
  // Of a tensor that has several places: out of that which `of` says.
  void Read(plan::TensorId id, void* to, size_t bytes, size_t offset = 0,
            const plan::Instance& of = {});
  void ReadRegion(const plan::Region& region, void* to);
  // As Read, into memory that is not of AllocateHost; the bytes are there when it returns.
  absl::Status ReadNow(plan::TensorId id, void* to, size_t bytes, size_t offset = 0,
                       const plan::Instance& of = {});
  // The region in place, where the host can read it: valid after Synchronize, until the next
  // launch. nullptr: the host cannot, use ReadRegion.
  const char* HostView(const plan::Region& region) const;

  // Where partial sum `partial` (plan::Plan::partial_sums) and a region are in the device's memory.
  PartialSum PartialInMemory(int64_t partial) const;
  absl::Span<char> InMemory(const plan::Region& region) const;

  // Copies within the arena, ordered with launches.
  void Copy(int64_t from, int64_t to, int64_t bytes);

  // A micro-batch: what goes to each of its tensors, all of the tensor's bytes, from host memory of
  // AllocateHost. `inputs` is what Dataset::Fill wrote: `input`, then `ids` unless that is kNone.
  struct MicroBatch {
    plan::TensorId state = plan::kNone, input = plan::kNone, ids = plan::kNone,
                   target = plan::kNone;
    const void *of_state = nullptr, *inputs = nullptr, *targets = nullptr;
    plan::Instance place = {};  // which of those in flight it is
  };
  // Puts it in place for what is launched from now on; see UploadQueue.
  void Upload(const MicroBatch& batch);
  // Waits until the next micro-batch may be written where the oldest of BatchesInUse lies in host
  // memory.
  absl::Status WaitForRoom() { return Wait(uploads_->Room()); }

  absl::Status Synchronize();

  // The same as the device's methods. RecordEvent puts an event behind all that was enqueued.
  bool Asynchronous() const { return device_.Asynchronous(); }
  int64_t BatchesInUse() const { return engine::BatchesInUse(device_); }
  std::shared_ptr<char[]> AllocateHost(size_t bytes) { return device_.AllocateHost(bytes); }
  std::unique_ptr<kernels::Event> MakeEvent() { return device_.MakeEvent(); }
  void RecordEvent(kernels::Event& event) { device_.RecordEvent(event, *stream_); }
  absl::Status Wait(kernels::Event& event);

 private:
  Session(kernels::Device& device, const plan::Plan& plan, char* arena,
          std::unique_ptr<UploadQueue> uploads);
  char* At(plan::TensorId id, size_t offset, size_t bytes, const plan::Instance& of = {}) const;

  kernels::Device& device_;
  const plan::Plan& plan_;
  char* arena_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<UploadQueue> uploads_;
  DeviceCommunicator* links_ = nullptr;  // that work of the stream may wait for
  std::unique_ptr<kernels::Event> idle_;
};

}  // namespace trainyard::engine
