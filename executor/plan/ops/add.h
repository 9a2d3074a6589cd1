#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Add> : ForwardOp, NoScratch {
  // A sum is fp32 when one side is, which is then `a`: a residual stream stays fp32.
  static void Retype(Add& o, Typing& typing) {
    if (typing.TypeOf(o.a) == typing.TypeOf(o.b)) {
      typing.WriteAs(o.y, o.a);
    } else if (typing.TypeOf(o.b) == ElementType::kF32) {
      std::swap(o.a, o.b);
    }
  }

  static void Differentiate(const Add& f, TensorId dy, Gradient& gradient) {
    for (const TensorId x : {f.a, f.b}) {
      if (gradient.Depends(x)) gradient.Accumulate(x, gradient.InTypeOf(x, dy));
    }
  }

  static InPlace InPlacePairs(const Add& o) { return {{o.a, o.y}, {o.b, o.y}}; }
};

}  // namespace trainyard::plan
