#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<MaxPoolForward> : ForwardOp, NoScratch {
  static void Retype(MaxPoolForward& o, Typing& typing) { typing.WriteAs(o.y, o.x); }

  static void Differentiate(const MaxPoolForward& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.x, [&](TensorId dx) {
      gradient.Emit(MaxPoolBackward{.dy = dy, .index = f.index, .dx = dx, .shape = f.shape});
    });
  }
};

template <>
struct Rules<MaxPoolBackward> : BackwardOp, NoScratch {};

}  // namespace trainyard::plan
