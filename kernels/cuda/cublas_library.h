#pragma once

#include "absl/status/status.h"

namespace trainyard::kernels::cuda {

// Loads cuBLASLt, once. A program that linked it would pay 95 ms and 150 MB at its start, whether
// it opens a GPU or not. The library's functions that this back end calls may be called after this
// has succeeded. kUnavailable: it is not where the dynamic linker looks. Thread-safe.
absl::Status LoadCublasLt();

}  // namespace trainyard::kernels::cuda
