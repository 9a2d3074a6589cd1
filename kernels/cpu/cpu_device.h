#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"

namespace trainyard::kernels {

// Prepare of an op is defined in the file of its op. Launches use the OpenMP pool of the thread
// that calls them, with this device's thread count.
class CpuDevice : public Device {
 public:
  // `vectors`: one of SupportedTables().
  CpuDevice(int threads, const VectorTable& vectors);
  ~CpuDevice() override;

  // The inner loops that this machine can run, best first.
  static std::vector<const VectorTable*> SupportedTables();

  std::string Description() const override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* data) override;
  std::unique_ptr<Stream> MakeStream() override;
  void CopyIn(Stream& stream, void* device_to, const void* host_from, size_t bytes) override;
  void CopyOut(Stream& stream, void* host_to, const void* device_from, size_t bytes) override;
  const void* HostView(const void* device_data) const override { return device_data; }
  absl::Status Synchronize(Stream& stream) override;

#define TY_PREPARE(Op) absl::StatusOr<Kernel> Prepare(const Op& op) override;
  TY_FOR_EACH_OP(TY_PREPARE)
#undef TY_PREPARE

 private:
  const int threads_;
  const VectorTable& vectors_;
  const Dnnl dnnl_;
  std::unordered_set<void*> allocations_;
};

}  // namespace trainyard::kernels
