#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<MuonMomentum> : BackwardOp, NoScratch {};

template <>
struct Rules<DivideByNorm> : BackwardOp, NoScratch {};

template <>
struct Rules<NewtonSchulz> : BackwardOp, NoScratch {};

template <>
struct Rules<MuonStep> : BackwardOp, NoScratch {};

}  // namespace trainyard::plan
