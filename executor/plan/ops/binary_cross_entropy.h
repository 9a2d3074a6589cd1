#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<BinaryCrossEntropy> : BackwardOp, NoScratch {
  static InPlace InPlacePairs(const BinaryCrossEntropy& o) {
    return o.dlogits != kNone ? InPlace{{o.logits, o.dlogits}} : InPlace{};
  }
};

}  // namespace trainyard::plan
