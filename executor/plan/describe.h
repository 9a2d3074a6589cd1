#pragma once

#include <string>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Bytes of `plan` as a table for people, and the kernels in order: what `trainyard plan` prints.
std::string Describe(const Plan& plan);

}  // namespace trainyard::plan
