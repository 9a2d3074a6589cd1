#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<CopyIfTaken> : BackwardOp, NoScratch {};

}  // namespace trainyard::plan
