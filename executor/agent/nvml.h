#pragma once

// GPUs as NVIDIA's management library sees them. The library is opened at run time, so that the
// same agent binary runs on a machine without a driver; CUDA is never loaded.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard {

struct Gpu {
  int index = 0;  // among those that are visible, as CUDA counts with CUDA_DEVICE_ORDER=PCI_BUS_ID
  std::string model;  // "NVIDIA H200"
  int64_t memory_bytes = 0;
};

// What a GPU does now; 0 where the driver does not tell.
struct GpuUsage {
  double utilization = 0;  // 0 to 1: share of the driver's last sample in which a kernel ran
  int64_t memory_used_bytes = 0;
  double temperature_celsius = 0;
  double power_watts = 0;
};

// An error that the driver reports: https://docs.nvidia.com/deploy/xid-errors
struct Xid {
  int gpu = 0;
  int code = 0;
};

// "Xid 79 (fell off the bus) of GPU 1"; for a code that is not in our table, without the words in
// parentheses.
std::string Describe(const Xid& xid);

// Any call may take as long as the driver likes. Not thread-safe.
class Nvml {
 public:
  // The GPUs that `visible` names, in its order: indices and UUIDs as in $CUDA_VISIBLE_DEVICES;
  // null: all. kNotFound: there is no driver, hence no GPU. kUnavailable: there is one and it
  // fails. kInvalidArgument: a name that is no GPU's, or one named twice.
  static absl::StatusOr<std::shared_ptr<Nvml>> Open(
      const std::string& library = "libnvidia-ml.so.1", const char* visible = nullptr);
  virtual ~Nvml() = default;

  virtual absl::StatusOr<std::vector<Gpu>> List() = 0;
  // What each GPU does, by index.
  virtual std::vector<GpuUsage> Usage() = 0;
  // The next error, waited for at most `timeout`. kUnimplemented: this driver reports no errors.
  virtual absl::StatusOr<std::optional<Xid>> NextXid(absl::Duration timeout) = 0;
};

}  // namespace trainyard
