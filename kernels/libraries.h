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
// Loads the libraries to ask them. Empty in builds without CUDA. Only the driver's own version
// needs a driver.
std::vector<Library> CudaLibraries();

}  // namespace trainyard::kernels
