#pragma once

// The third-party libraries that the back ends call and their versions on this machine, for reports
// of problems.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard::kernels {

struct Library {
  std::string name;
  absl::StatusOr<std::string> version;  // "9.19.0"; kUnavailable: why there is none
};

std::vector<Library> CpuLibraries();
// What the bits of the CPU's results depend on beside the ops: "oneDNN 2.6.3 for avx512_core_bf16,
// loops for avx512".
std::string CpuArithmetic();
// Loads the libraries to ask them. Empty in builds without CUDA. Only the driver's own version
// needs a driver.
std::vector<Library> CudaLibraries();

}  // namespace trainyard::kernels
