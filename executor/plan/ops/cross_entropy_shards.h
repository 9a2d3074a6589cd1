#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<CrossEntropyShard> : BackwardOp, NoScratch {};

template <>
struct Rules<CrossEntropyOfShards> : BackwardOp, NoScratch {};

template <>
struct Rules<CrossEntropyShardGradient> : BackwardOp, NoScratch {
  static InPlace InPlacePairs(const CrossEntropyShardGradient& o) {
    return {{o.logits, o.dlogits}};
  }
};

}  // namespace trainyard::plan
