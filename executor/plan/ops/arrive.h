#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Arrive> : BackwardOp, NoScratch {};

}  // namespace trainyard::plan
