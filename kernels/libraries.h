#pragma once

// What the back ends call that is not ours, as it is on this machine: for reports of problems.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard::kernels {

struct Library {
  std::string name;
  absl::StatusOr<std::string> version;  // "9.19.0"; kUnavailable: why there is none
};

std::vector<Library> CpuLibraries();
// Loads them. Of builds without CUDA there are none; a driver is not needed for any but itself.
std::vector<Library> CudaLibraries();

}  // namespace trainyard::kernels
