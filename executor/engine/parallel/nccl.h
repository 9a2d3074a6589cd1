#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace trainyard::engine {

// The version of the NCCL that the dynamic linker finds: "2.28.9". The first call loads the
// library; no program links it, nor the CUDA driver, which this does not need. kUnavailable: there
// is no NCCL. Thread-safe.
absl::StatusOr<std::string> NcclVersion();

}  // namespace trainyard::engine
