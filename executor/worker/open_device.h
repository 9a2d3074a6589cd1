#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace trainyard::worker {

// Opens "cpu" or "cuda:I". A failure has the fault kSpec (no device has that name) or the device's
// (WithDeviceFault).
absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(const std::string& name, int threads);

// The folder where a device keeps what it measured on this machine: $TRAINYARD_CACHE, or trainyard
// in $XDG_CACHE_HOME or ~/.cache; "" when $HOME is not set either.
std::string CacheFolder(const std::function<const char*(const char*)>& variable = getenv);

}  // namespace trainyard::worker
