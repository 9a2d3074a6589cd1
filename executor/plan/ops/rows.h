#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<TakeRows> : BackwardOp, NoScratch {};

template <>
struct Rules<GatherRows> : BackwardOp, NoScratch {};

}  // namespace trainyard::plan
