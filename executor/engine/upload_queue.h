#pragma once

// Copies micro-batches from host memory to their tensors.

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

// On an asynchronous device a stream of its own copies a micro-batch into a staging buffer on the
// device while the device computes on the one before; once that is done, the micro-batch is copied
// to its tensors within the device. On other devices it is written in place. Thread-compatible.
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

  // Passed once the device has read the host memory of all uploads but the newest BatchesInUse - 1.
  kernels::Event& Room() { return *read_[deliveries_ % read_.size()]; }

  // Work launched on `stream` from now on finds `pieces` in place; work launched before does not.
  // Together they must not be larger than a micro-batch of the plan.
  void Upload(absl::Span<const Piece> pieces, kernels::Stream& stream);

 private:
  UploadQueue(kernels::Device& device, char* memory, size_t bytes);

  kernels::Device& device_;
  char* const memory_;  // null: pieces are written in place
  const size_t bytes_;
  std::unique_ptr<kernels::Stream> copies_;
  std::vector<std::unique_ptr<kernels::Event>> read_;  // [i % size]: delivery i has left the host
  std::unique_ptr<kernels::Event> emptied_;            // the newest delivery left memory_
  int64_t deliveries_ = 0;
};

// Micro-batches that `device` may still be reading when the next one is asked for.
inline int64_t BatchesInUse(const kernels::Device& device) { return device.Asynchronous() ? 2 : 1; }

}  // namespace trainyard::engine
