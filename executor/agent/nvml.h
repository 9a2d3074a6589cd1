#pragma once

// GPUs as NVIDIA's management library sees them. The library is opened at run time: an agent runs
// the same binary on a machine with no driver, and never loads CUDA.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard {

struct Gpu {
  int index = 0;      // in PCI order, as CUDA counts with CUDA_DEVICE_ORDER=PCI_BUS_ID
  std::string model;  // "NVIDIA H200"
  int64_t memory_bytes = 0;
};

// kNotFound: there is no driver library, hence no GPU. kUnavailable: there is one and it fails.
absl::StatusOr<std::vector<Gpu>> ListGpus(const std::string& library = "libnvidia-ml.so.1");

}  // namespace trainyard
