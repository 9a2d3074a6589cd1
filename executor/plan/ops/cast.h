#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Cast> : ForwardOp, NoScratch {
  static void Retype(Cast&, Typing&) {
    TY_CHECK(false, "casts come into a forward graph when its ops are typed");
  }

  static void Differentiate(const Cast& f, TensorId dy, Gradient& gradient) {
    if (gradient.Depends(f.x)) gradient.Accumulate(f.x, gradient.InTypeOf(f.x, dy));
  }
};

}  // namespace trainyard::plan
