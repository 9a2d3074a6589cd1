#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"

namespace trainyard::kernels {

struct RotaryTable;  // rotary.cc

// Bind of an op is defined in the file of its op. Launches use the OpenMP pool of the thread
// that calls them, with this device's thread count.
class CpuDevice : public Device {
 public:
  // `vectors`: one of SupportedTables().
  CpuDevice(int threads, const VectorTable& vectors);
  ~CpuDevice() override;

  // The inner loops that this machine can run, best first.
  static std::vector<const VectorTable*> SupportedTables();

  std::string Description() const override;
  std::map<std::string, std::string> Arithmetic() const override;
  int Threads() const override { return threads_; }
  int64_t PeakMemoryBytes() override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* data) override;
  std::unique_ptr<Stream> MakeStream() override;
  void CopyIn(Stream& stream, void* device_to, const void* host_from, size_t bytes) override;
  void CopyOut(Stream& stream, void* host_to, const void* device_from, size_t bytes) override;
  void Copy(Stream& stream, void* device_to, const void* device_from, size_t bytes) override;
  const void* HostView(const void* device_data) const override { return device_data; }
  absl::Status Synchronize(Stream& stream) override;
  absl::StatusOr<Kernel> Record(Stream& stream, std::shared_ptr<const Kernels> program) override;

#define TY_BIND(Op) absl::StatusOr<Kernel> Bind(const Op& op) override;
  TY_FOR_EACH_OP(TY_BIND)
#undef TY_BIND

  // Bytes of the rotary tables that prepared kernels share. They are not part of any scratch; a
  // table lives as long as the last kernel that reads it.
  int64_t table_bytes() const;

 private:
  std::shared_ptr<const RotaryTable> RotaryTableOf(const Rotary& op);

  const int threads_;
  const VectorTable& vectors_;
  const Dnnl dnnl_;
  std::unordered_set<void*> allocations_;
  // By theta, time and head_dim.
  std::map<std::tuple<float, int64_t, int64_t>, std::weak_ptr<const RotaryTable>> rotary_tables_;
};

}  // namespace trainyard::kernels
