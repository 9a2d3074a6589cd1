#pragma once

// Models whose memory is checked byte by byte: of every family and optimizer, in every precision,
// on one rank and on several that share out state, gradients and parameters.

#include <vector>

#include "tests/unit/plan/specs.h"

namespace trainyard::plan {

std::vector<ModelCase> SmallModels();

}  // namespace trainyard::plan
