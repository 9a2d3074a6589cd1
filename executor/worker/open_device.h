#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace trainyard::worker {

// "cpu", or "cuda:I". Failures are blamed on the spec (a name that is none) or on the device.
absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(const std::string& name, int threads);

// Runs a small kernel, so that libraries are loaded and their first use is over.
void WarmUp(kernels::Device& device);

}  // namespace trainyard::worker
