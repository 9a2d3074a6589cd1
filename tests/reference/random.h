#pragma once

// Numbers to try ops on: the same of the same seed.

#include <cstdint>
#include <vector>

#include "tests/reference/vec.h"

namespace trainyard::reference {

// Of a normal distribution. Values that fp32 holds exactly, so that both sides start from the same
// numbers.
Vec RandomVec(int64_t n, int seed, double scale = 1);

// From 0 to below - 1.
std::vector<int32_t> RandomIds(int64_t n, int32_t below, int seed);

}  // namespace trainyard::reference
