#pragma once

// Ranks as real processes, each with a GPU, which are killed and stopped.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "executor/engine/parallel/nccl_communicator.h"
#include "kernels/device.h"
#include "tests/unit/engine/parallel/gang.h"

namespace trainyard::engine::testing {

// Device memory with something in it.
class DeviceBytes {
 public:
  DeviceBytes(kernels::Device& device, size_t bytes);
  ~DeviceBytes() { device_.Free(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  absl::Span<char> span() const { return {static_cast<char*>(data_), bytes_}; }

  // Copies that are ordered with the stream.
  void Write(kernels::Stream& stream, const std::string& bytes) const;
  void Read(kernels::Stream& stream, char* to) const;

 private:
  kernels::Device& device_;
  const size_t bytes_;
  void* data_ = nullptr;
};

// What a rank has when its test begins.
struct GpuRank {
  std::unique_ptr<Communicator> host;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<kernels::Stream> stream;
  std::unique_ptr<NcclCommunicator> links;

  int rank() const { return host->rank(); }
  int size() const { return host->size(); }
  // Waits for what is on `on`, or gives up as NcclCommunicator::Await does.
  absl::Status Await(kernels::Stream& on) const;
};

// Meets with the others on hosts and GPUs and runs `body`; the words of an error as a result.
using GpuBody = std::function<absl::Status(GpuRank&, const Gang::Say&)>;
Gang::Body MeetingOnGpus(GpuBody body);

// Another GPU's communicator as one between hosts: what is exchanged goes into device memory, from
// GPU to GPU, and back.
std::unique_ptr<Communicator> OverGpus(GpuRank& rank);

}  // namespace trainyard::engine::testing
