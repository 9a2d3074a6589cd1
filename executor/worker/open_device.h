#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace trainyard::worker {

// "cpu", or "cuda:I". The fault of a failure is the spec (a name that is none) or the device.
absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(const std::string& name, int threads);

// Where a device keeps what it measured of this machine: $TRAINYARD_CACHE, or trainyard in
// $XDG_CACHE_HOME or ~/.cache; "" where there is no home either.
std::string CacheFolder(const std::function<const char*(const char*)>& variable = getenv);

// Runs small kernels, so that libraries are loaded and their first use is over. What this device
// has no kernel for is left out; a failure means that it cannot be used.
absl::Status WarmUp(kernels::Device& device);

}  // namespace trainyard::worker
