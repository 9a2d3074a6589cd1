#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Fold> : BackwardOp, NoScratch {};

}  // namespace trainyard::plan
