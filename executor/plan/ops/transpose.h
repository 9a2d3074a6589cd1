#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Transpose> : ForwardOp, NoScratch {
  static void Retype(Transpose& o, Typing& typing) { typing.WriteAs(o.y, o.x); }

  static void Differentiate(const Transpose& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.x, [&](TensorId dx) {
      gradient.Emit(Transpose{.x = dy, .y = dx, .batch = f.batch, .rows = f.cols, .cols = f.rows});
    });
  }
};

}  // namespace trainyard::plan
