#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace trainyard::engine {

// "2.28.9", of the NCCL that the dynamic linker finds. It is loaded when it is first asked for,
// once; no program links it, nor the driver, which it does not need for this. kUnavailable: there
// is none. Thread-safe.
absl::StatusOr<std::string> NcclVersion();

}  // namespace trainyard::engine
