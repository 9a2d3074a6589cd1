#pragma once

// What one helper may take.

#include <cstdint>

#include "absl/time/time.h"

namespace trainyard {

struct SizingLimits {
  int64_t memory_bytes = 0;  // private and writable (RLIMIT_DATA)
  absl::Duration time;       // for one question
};

// Exit code of a helper that asked for more memory than its limit.
inline constexpr int kOutOfMemory = 9;

}  // namespace trainyard
