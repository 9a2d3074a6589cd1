#pragma once

// Micro-batches on their way from host memory to their tensors.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executor/plan/graph/plan.h"
#include "kernels/device.h"

namespace trainyard::engine {

// On a device that computes while the host goes on a micro-batch comes by a stream of its own, into
// memory of its own, while the device computes on the one before; when that is done, it takes the
// rest of the way within the device. On others it is written in place. Thread-compatible.
class UploadQueue {
 public:
  // All of the bytes of a tensor, from host memory of Device::AllocateHost.
  struct Piece {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
  };

  // `device` must outlive it. kResourceExhausted: no memory for a micro-batch of `plan`.
  static absl::StatusOr<std::unique_ptr<UploadQueue>> Open(kernels::Device& device,
                                                           const plan::Plan& plan);
  ~UploadQueue();
  UploadQueue(const UploadQueue&) = delete;
  UploadQueue& operator=(const UploadQueue&) = delete;

  // Until the host memory of every delivery is free again but for the BatchesInUse - 1 newest ones.
  absl::Status WaitForRoom();

  // What is launched on `stream` from now on finds `pieces`, which fit a micro-batch of the plan,
  // in place; what was launched before does not.
  void Upload(absl::Span<const Piece> pieces, kernels::Stream& stream);

 private:
  UploadQueue(kernels::Device& device, char* memory, size_t bytes);

  kernels::Device& device_;
  char* const memory_;  // null: pieces are written in place
  const size_t bytes_;
  std::unique_ptr<kernels::Stream> copies_;
  std::vector<std::unique_ptr<kernels::Event>> read_;  // delivery i, at i % size, left the host
  std::unique_ptr<kernels::Event> emptied_;            // the newest delivery left memory_
  int64_t deliveries_ = 0;
};

// Micro-batches that `device` may still be reading when the next one is asked for.
inline int64_t BatchesInUse(const kernels::Device& device) { return device.Asynchronous() ? 2 : 1; }

}  // namespace trainyard::engine
