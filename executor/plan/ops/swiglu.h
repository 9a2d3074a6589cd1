#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<SwiGluForward> : ForwardOp, NoScratch {
  static void Retype(SwiGluForward& o, Typing& typing) { typing.WriteAs(o.y, o.x); }

  static void Differentiate(const SwiGluForward& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.x, [&](TensorId dx) {
      gradient.Emit(SwiGluBackward{.x = f.x, .dy = dy, .dx = dx, .rows = f.rows, .cols = f.cols});
    });
  }
};

template <>
struct Rules<SwiGluBackward> : BackwardOp, NoScratch {
  static InPlace InPlacePairs(const SwiGluBackward& o) { return {{o.x, o.dx}}; }
};

}  // namespace trainyard::plan
