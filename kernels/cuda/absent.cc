// Stands in for the CUDA back end where CMake found no toolkit.

#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/libraries.h"

namespace trainyard::kernels {

absl::StatusOr<std::unique_ptr<Device>> OpenCuda(int, const std::string&) {
  return absl::UnavailableError("this program was built without CUDA");
}

std::vector<Library> CudaLibraries() { return {}; }

}  // namespace trainyard::kernels
